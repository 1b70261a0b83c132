"""An input function, called and checked: it returns batches of (features, labels)."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from stratagem.classic.estimator.estimator_specs import INPUT_FN, ModeKeys
from stratagem.engines.rows import count_rows
from stratagem.errors import DataError, StrategyError
from stratagem.strategies import InputContext
from stratagem.waist.user_functions import check_callable, describe_type

_ARGUMENTS = ("input_context", "global_step")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_VERBS = {ModeKeys.TRAIN: "train", ModeKeys.EVAL: "evaluate", ModeKeys.PREDICT: "predict"}


@dataclass(frozen=True)
class BatchForm:
    """The form that all batches of an input share.

    Attributes:
        features: The features of the first batch, with shapes and dtypes in place of arrays.
        labels: Its labels, likewise.
    """

    features: Any
    labels: Any

    @property
    def key(self) -> Any:
        """A key that is equal for all inputs that the same model fits: the number of rows does not matter."""
        leaves, tree = jax.tree.flatten((self.features, self.labels))
        return tree, tuple((leaf.shape[1:], str(leaf.dtype)) for leaf in leaves)

    @property
    def zeros(self) -> Any:
        """One row of features, all zeros: the same on all workers, whatever their batches are."""
        return jax.tree.map(
            lambda leaf: np.zeros((1, *leaf.shape[1:]) if leaf.shape else (), leaf.dtype), self.features
        )


class InputFunction:
    """An input function.

    Args:
        input_fn: Returns an iterable of batches. It may ask for `input_context`, to make the batches of this worker
            alone, and for `global_step`, to begin where the training does.
        mode: The purpose of the batches.
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
        parameters = inspect.signature(input_fn).parameters.values()
        unknown = [
            each.name
            for each in parameters
            if each.default is each.empty and each.kind not in _VARIADIC and each.name not in _ARGUMENTS
        ]
        if unknown:
            raise StrategyError(
                f"input_fn asks for {', '.join(unknown)}; it may ask for {' and '.join(_ARGUMENTS)}, or nothing. Bind "
                "others with functools.partial or a lambda"
            )
        names = {each.name for each in parameters}
        self.wants_context = "input_context" in names
        self.wants_step = "global_step" in names

    def open(
        self, context: InputContext | None = None, global_step: int = 0
    ) -> tuple[BatchForm, Iterator[Any]]:
        """Call the function; return the form of its batches, and the batches.

        Raises:
            DataError: The function returned something else than an iterable of batches, or no batch.
        """
        arguments: dict[str, Any] = {}
        if self.wants_context:
            arguments["input_context"] = InputContext() if context is None else context
        if self.wants_step:
            arguments["global_step"] = global_step
        result = self._input_fn(**arguments)
        if isinstance(result, tuple | dict | str | bytes) or not isinstance(result, Iterable):
            raise DataError(
                f"input_fn returned {describe_type(result)}; it has to return an iterable of batches, such as a list or a "
                "generator of (features, labels)"
            )
        batches = iter(result)
        first = next(batches, None)
        if first is None:
            raise DataError("input_fn returned no batch: return one at least")
        pair = self._as_pair(first, 0)
        form = BatchForm(*jax.tree_util.tree_map_with_path(_leaf_form, pair))
        count_rows(pair)
        self._check(pair)
        return form, self._checked_pairs(form, itertools.chain([first], batches))

    def _checked_pairs(self, form: BatchForm, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            pair = self._as_pair(batch, number)
            if number:
                _check_form(form, pair, number)
                self._check(pair)
            yield pair

    def _check(self, pair: tuple[Any, Any]) -> None:
        if self._check_labels is not None:
            self._check_labels(pair[1])

    def _as_pair(self, batch: Any, number: int) -> tuple[Any, Any]:
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
            "(features, labels), or (features, None) for a model that needs no labels"
        )


def _leaf_form(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    if np.dtype(dtype).kind in "OSUMm":
        raise DataError(
            f"{_leaf_name(path)} of a batch is of type {dtype}, but models compute with numbers only: convert it to numbers "
            "first"
        )
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))


def _check_form(form: BatchForm, pair: tuple[Any, Any], number: int) -> None:
    expected, tree = jax.tree.flatten((form.features, form.labels))
    structure: Any = jax.tree.structure(pair)
    if structure != tree:
        raise DataError(
            f"batch {number} of input_fn has another structure than the first: {structure} instead of {tree}; give all "
            "batches the same structure"
        )
    for first, (path, leaf) in zip(expected, jax.tree_util.tree_leaves_with_path(pair), strict=True):
        shape = np.shape(leaf)
        if len(shape) != len(first.shape) or shape[1:] != first.shape[1:]:
            raise DataError(
                f"{_leaf_name(path)} of batch {number} has the shape {shape}, and {first.shape} in the first: only the "
                "number of rows may change"
            )


def _leaf_name(path: Any) -> str:
    """Return the name of a leaf in a batch, such as `features['x']`."""
    name = "features" if path[0].idx == 0 else "labels"
    return f"{name}{jax.tree_util.keystr(path[1:])}"
