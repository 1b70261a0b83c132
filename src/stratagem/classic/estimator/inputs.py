"""What an input function gives: batches of (features, labels), looked at before anything is made for them."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.classic.estimator.checks import INPUT_FN
from stratagem.classic.estimator.spec import ModeKeys
from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StrategyError
from stratagem.strategies import InputContext
from stratagem.waist.user_functions import check_callable, describe_type

_KNOWN = ("input_context", "global_step")


@dataclass(frozen=True)
class Form:
    """What all batches of an input have in common.

    Attributes:
        features: The first batch's, with shapes and dtypes in place of arrays.
        labels: The same.
    """

    features: Any
    labels: Any

    @property
    def key(self) -> Any:
        """The same for all inputs that one model fits: the number of rows does not matter."""
        leaves, tree = jax.tree.flatten((self.features, self.labels))
        return tree, tuple((leaf.shape[1:], str(leaf.dtype)) for leaf in leaves)


class Input:
    """An input function.

    Args:
        input_fn: Returns an iterable of batches; may ask for `input_context`, to make this worker's own, and for
            `global_step`, to begin where the training does.
        mode: What for.
        check_labels: Raises an error for labels that the model cannot use.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        mode: ModeKeys,
        check_labels: Callable[[Any], object] | None = None,
    ) -> None:
        check_callable("input_fn", input_fn, INPUT_FN)
        self._input_fn = input_fn
        self._mode = mode
        self._check_labels = None if mode is ModeKeys.PREDICT else check_labels
        asked = inspect.signature(input_fn).parameters.values()
        unknown = [
            each.name
            for each in asked
            if each.default is each.empty and each.kind not in _VARIADIC and each.name not in _KNOWN
        ]
        if unknown:
            raise StrategyError(
                f"input_fn asks for {', '.join(unknown)}; it may ask for {' and '.join(_KNOWN)}, or nothing. Bind "
                "others with functools.partial or a lambda"
            )
        names = {each.name for each in asked}
        self.wants_context = "input_context" in names
        self.wants_step = "global_step" in names

    def open(self, context: InputContext | None = None, global_step: int = 0) -> tuple[Form, Iterator[Any]]:
        """Call the function: the form of its batches, and the batches.

        Raises:
            DataError: What it returns is no iterable of batches, or has none.
        """
        given: dict[str, Any] = {}
        if self.wants_context:
            given["input_context"] = InputContext() if context is None else context
        if self.wants_step:
            given["global_step"] = global_step
        returned = self._input_fn(**given)
        if isinstance(returned, tuple | dict | str | bytes) or not isinstance(returned, Iterable):
            raise DataError(
                f"input_fn returned {describe_type(returned)}; it is to return an iterable of batches, such as a list or a "
                "generator of (features, labels)"
            )
        batches = iter(returned)
        first = next(batches, None)
        if first is None:
            raise DataError("input_fn gave no batch: give one at least")
        pair = self._pair(first, 0)
        form = Form(*jax.tree_util.tree_map_with_path(_form, pair))
        count_rows(pair)
        self._check(pair)
        return form, self._checked(form, itertools.chain([first], batches))

    def _checked(self, form: Form, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            pair = self._pair(batch, number)
            if number:
                _check_same(form, pair, number)
                self._check(pair)
            yield pair

    def _check(self, pair: tuple[Any, Any]) -> None:
        if self._check_labels is not None:
            self._check_labels(pair[1])

    def _pair(self, batch: Any, number: int) -> tuple[Any, Any]:
        if isinstance(batch, tuple) and len(batch) == 2:
            return batch[0], None if self._mode is ModeKeys.PREDICT else batch[1]
        if self._mode is ModeKeys.PREDICT:
            return batch, None
        if isinstance(batch, tuple):
            raise DataError(
                f"batch {number} of input_fn is a tuple of {len(batch)}; give tuples of two, (features, labels), each an "
                "array or a dictionary of arrays"
            )
        raise DataError(
            f"batch {number} of input_fn is {describe_type(batch)} and has no labels: to {_VERBS[self._mode]}, give tuples "
            "(features, labels); (features, None) for a model that needs none"
        )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_VERBS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "evaluate", ModeKeys.PREDICT: "predict"}


def one_row_of_zeros(form: Any) -> Any:
    """Arrays of that form with one row: the same on all workers, whatever their batches are."""
    return jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]) if leaf.shape else (), leaf.dtype), form)


def _form(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    if np.dtype(dtype).kind in "OSUMm":
        raise DataError(
            f"{_place(path)} of a batch is of type {dtype}; only numbers can be computed with: turn it into some first"
        )
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))


def _check_same(form: Form, pair: tuple[Any, Any], number: int) -> None:
    expected, tree = jax.tree.flatten((form.features, form.labels))
    found: Any = jax.tree.structure(pair)
    if found != tree:
        raise DataError(
            f"batch {number} of input_fn is built otherwise than the first: {found} instead of {tree}; give all batches "
            "the same structure"
        )
    for wanted, (path, leaf) in zip(expected, jax.tree_util.tree_leaves_with_path(pair), strict=True):
        shape = np.shape(leaf)
        if len(shape) != len(wanted.shape) or shape[1:] != wanted.shape[1:]:
            raise DataError(
                f"{_place(path)} of batch {number} has the shape {shape}, and {wanted.shape} in the first: only the "
                "number of rows may change"
            )


def _place(path: Any) -> str:
    """Where in a batch: `features['x']`."""
    name = "features" if path[0].idx == 0 else "labels"
    return f"{name}{jax.tree_util.keystr(path[1:])}"
