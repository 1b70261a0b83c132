"""The structure of a batch in plain values, so that it can be told to another task. Pure."""

from collections.abc import Iterator
from typing import Any

from stratagem.errors import DataError

_LEAF = "leaf"


def describe_structure(batch: Any) -> tuple[Any, list[Any]]:
    """The structure of a batch, and its leaves in order.

    Example:
        >>> describe_structure({"image": 1, "label": (2, 3)})
        ({'dict': [['image', 'leaf'], ['label', {'tuple': ['leaf', 'leaf']}]]}, [1, 2, 3])
    """
    leaves: list[Any] = []

    def describe(value: Any) -> Any:
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise DataError(f"the keys of a batch are texts, not {list(value)!r:.80}")
            return {"dict": [[key, describe(each)] for key, each in value.items()]}
        if type(value) is tuple or type(value) is list:
            return {type(value).__name__: [describe(each) for each in value]}
        if isinstance(value, tuple):
            raise DataError(
                f"a batch is made of dictionaries, tuples, lists and arrays; {type(value).__name__} is none of them: "
                "make a plain tuple of it, or a dictionary"
            )
        leaves.append(value)
        return _LEAF

    return describe(batch), leaves


def rebuild_structure(structure: Any, leaves: Iterator[Any]) -> Any:
    """The batch that was described, with these leaves."""
    if structure == _LEAF:
        return next(leaves)
    ((kind, inner),) = structure.items()
    if kind == "dict":
        return {key: rebuild_structure(each, leaves) for key, each in inner}
    parts = [rebuild_structure(each, leaves) for each in inner]
    return tuple(parts) if kind == "tuple" else parts
