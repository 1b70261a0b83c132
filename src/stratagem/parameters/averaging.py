"""The mean of several pushes and the update that it makes, as one program: gradients are read once, and never kept."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import RemoteCallError
from stratagem.runtime.programs import CompiledProgram


class AveragedUpdate:
    """An update, made of the mean of gradients by rows instead of gradients.

    Args:
        update: The update as it was shipped: values, gradients and what follows them in, values out.
        values: How many values it updates.
    """

    def __init__(self, update: CompiledProgram, values: int) -> None:
        self._update = update
        self._given = [index for index in range(values) if index in update.donated]
        self._lent = [index for index in range(values) if index not in update.donated]
        self._jitted = jax.jit(self._traced, donate_argnums=0)

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
        try:
            with jax.enable_x64(True), jax.default_device(self._update.device):
                results = self._jitted(
                    [values[index] for index in self._given],
                    [values[index] for index in self._lent],
                    weights(rows),
                    [list(each) for each in gradients],
                    list(others),
                )
                return list(jax.block_until_ready(results))
        except jax.errors.JaxRuntimeError as error:
            raise RemoteCallError(f"the program failed while it ran: {error}") from error

    def _traced(self, given: Any, lent: Any, weights: Any, gradients: Any, others: Any) -> Any:
        places = dict(zip((*self._given, *self._lent), (*given, *lent), strict=True))
        values = [places[index] for index in range(len(places))]
        return self._update.traceable(*values, *weighted(weights, gradients), *others)


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
