"""Stacking elements of a stream into a batch: dicts, lists and tuples of arrays, nested as one likes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stratagem.errors import DataError


def stack(elements: Sequence[Any]) -> Any:
    """One element whose leaves have the batch as their first axis.

    Example:
        >>> stack([{"x": 1, "y": (2.0, None)}, {"x": 3, "y": (4.0, None)}])
        {'x': array([1, 3]), 'y': (array([2., 4.]), None)}
    """
    return _stack(elements, "element")


def _stack(elements: Sequence[Any], path: str) -> Any:
    first = elements[0]
    other = next((element for element in elements if type(element) is not type(first)), None)
    if isinstance(first, Mapping | list | tuple | bytes | str | None) and other is not None:
        raise DataError(
            f"{path} is a {type(first).__name__} in one element of the stream and a {type(other).__name__} in "
            f"another; all elements of a batch have the same structure"
        )
    if first is None:
        return None
    if isinstance(first, Mapping):
        if any(element.keys() != first.keys() for element in elements):
            raise DataError(
                f"{path} does not have the same keys in all elements of the stream: {sorted(first)}"
            )
        return {key: _stack([element[key] for element in elements], f"{path}[{key!r}]") for key in first}
    if isinstance(first, list | tuple):
        if any(len(element) != len(first) for element in elements):
            raise DataError(f"{path} does not have {len(first)} parts in all elements of the stream")
        parts = [_stack(part, f"{path}[{at}]") for at, part in enumerate(zip(*elements, strict=True))]
        if hasattr(first, "_fields"):
            return type(first)(*parts)
        return type(first)(parts)
    if isinstance(first, bytes | str):  # NumPy's own strings lose trailing zero bytes
        return np.fromiter(elements, object, len(elements))
    arrays = [np.asarray(element) for element in elements]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"{path} has shapes {', '.join(map(str, sorted(shapes)))} in one batch; make them equal before batching"
        )
    return np.stack(arrays)
