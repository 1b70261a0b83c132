"""The mean of several pushes and the update that it makes, as one program: gradients are read once, and never kept."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.runtime.programs import CompiledProgram, TensorSpec


class AveragedUpdate:
    """An update of one push as it was shipped, or of several: of the mean of their gradients by rows.

    Args:
        update: The update as it was shipped: values, gradients and what follows them in, values out.
        values: How many values it updates.
        gradients: How many gradients it takes.
    """

    def __init__(self, update: CompiledProgram, values: int, gradients: int) -> None:
        self._update = update
        self._values = values
        self._gradients = gradients
        self._programs: dict[int, CompiledProgram] = {}

    def __call__(
        self,
        values: Sequence[jax.Array],
        rows: Sequence[int],
        gradients: Sequence[Sequence[Any]],
        others: Sequence[Any],
    ) -> list[jax.Array]:
        """The new values, when they are there and nothing is read any more.

        Args:
            values: The old ones, which are gone afterwards.
            rows: How many examples each push is of.
            gradients: The gradients of each push.
            others: What follows the gradients.

        Raises:
            RemoteCallError: It failed while it ran.
        """
        if len(rows) == 1:
            return self._update([*values, *gradients[0], *others], wait=True)
        program = self._programs.get(len(rows))
        if program is None:
            program = self._programs[len(rows)] = self._made(len(rows))
        flat = [each for push in gradients for each in push]
        return program([*values, *flat, *others, weights(rows)], wait=True)

    def _made(self, pushes: int) -> CompiledProgram:
        """The program for so many pushes."""
        count, first = self._gradients, self._values
        last = first + pushes * count
        values, gradients, others = _cut(self._update.summary.inputs, first, first + count)

        def averaged(*arrays: Any) -> Any:
            values, flat, others = _cut(arrays, first, last)
            lists = [flat[start : start + count] for start in range(0, len(flat), count)]
            return self._update.traceable(*values, *weighted(others[-1], lists), *others[:-1])

        inputs = (*values, *list(gradients) * pushes, *others, TensorSpec((pushes,), "float32"))
        return self._update.derive(
            averaged, inputs, tuple(each for each in self._update.donated if each < first)
        )


def _cut(things: Sequence[Any], first: int, last: int) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return things[:first], things[first:last], things[last:]


def weights(rows: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """How much each push counts in the mean."""
    return np.asarray(rows, np.float32) / np.float32(sum(rows))


def weighted(weights: jax.Array, lists: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
    """The mean of gradients, in the order of the pushes; traceable."""

    def mean(*gradients: jax.Array) -> jax.Array:
        wide = jnp.promote_types(gradients[0].dtype, jnp.float32)
        total = gradients[0].astype(wide) * weights[0].astype(wide)
        for index, gradient in enumerate(gradients[1:], start=1):
            total = total + gradient.astype(wide) * weights[index].astype(wide)
        return total.astype(gradients[0].dtype)

    return [mean(*column) for column in zip(*lists, strict=True)]
