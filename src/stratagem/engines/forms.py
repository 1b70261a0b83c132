"""What workers in step know of the form of each other's batches and metrics."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from stratagem.engines.rows import count_rows
from stratagem.engines.workers import Array, Workers
from stratagem.errors import StrategyError

_Shapes: TypeAlias = dict[str, list[int]]
"""The shapes of metrics, by their names."""
_DIGEST_BYTES = 8
GATHERING = np.frombuffer(b"gathering a state", np.uint8)
"""Said by a worker in place of the form of its part of a batch."""


def form_of(batch: Any) -> Any:
    """The structure, shapes and types of a batch; can be looked up."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, tuple([(np.shape(leaf), np.result_type(leaf)) for leaf in leaves])


def part_form(batch: Any) -> Array:
    """The form of a worker's part of a batch in a few bytes; none if it has no row."""
    if not count_rows(batch, of_nothing=0):
        return np.zeros(0, np.uint8)
    return np.frombuffer(
        hashlib.blake2b(repr(form_of(batch)).encode(), digest_size=_DIGEST_BYTES).digest(), np.uint8
    )


def doings(workers: Workers, own: Array) -> Sequence[Array]:
    """What each worker is about to do: the forms of their parts of the next batch, or `GATHERING` from all.

    Raises:
        StrategyError: Some train, and some bring together what each has of a state.
    """
    told = workers.gather(own)
    gather = [worker for worker, each in enumerate(told) if each.tobytes() == GATHERING.tobytes()]
    if gather and len(gather) < len(told):
        raise StrategyError(
            f"worker {gather[0]} fetches or saves a state of which each worker has a part (shard_state=True), while others "
            "train: call strategy.fetch and Checkpointer.save on every worker, not on the chief alone; only the chief writes"
        )
    return told


def all_alike(forms: Sequence[Array]) -> bool:
    """Whether the parts of all workers have the same form, and rows."""
    return forms[0].size > 0 and all(each.tobytes() == forms[0].tobytes() for each in forms)


class MetricForms:
    """The names and shapes of metrics, which a worker that has not computed any learns from the others.

    Args:
        workers: The workers.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._shapes: _Shapes | None = None

    def agreed(self, own: _Shapes | None) -> _Shapes:
        """The shapes, by name and in the order of names; asks the others at the first step.

        Args:
            own: Those of this worker's metrics; `None` if it has computed none.

        Raises:
            StrategyError: The workers have different metrics.
        """
        if self._shapes is None:
            self._shapes = self._all_the_same(own)
        return self._shapes

    def check(self, own: _Shapes) -> None:
        """Compare those that a batch of a new form has given; all workers come here together."""
        self._shapes = self._all_the_same(own)

    def _all_the_same(self, own: _Shapes | None) -> _Shapes:
        encoded = np.frombuffer(json.dumps(own, sort_keys=True).encode(), np.uint8)
        told: list[_Shapes | None] = [json.loads(each.tobytes()) for each in self._workers.gather(encoded)]
        known = [shapes for shapes in told if shapes is not None]
        if any(shapes != known[0] for shapes in known):
            raise StrategyError(f"the workers' loss functions return different metrics: {known}")
        return known[0]
