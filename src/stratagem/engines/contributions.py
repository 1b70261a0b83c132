"""What workers in step contribute to an update, and what they tell each other of the form of their batches and metrics.

Contributions are weighed with their rows, so their sums are means over the rows of the global batch, however unevenly these
are spread.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.engine import forward_and_back
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows
from stratagem.engines.workers import Array, Workers
from stratagem.errors import StrategyError
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Contribute: TypeAlias = Callable[[TrainState, Any], tuple[list[Any], Arrays, tuple[str, ...]]]
"""Takes a state and this worker's share of a batch. Returns arrays to be summed over all workers (gradients, shared state,
the number of rows, metrics), state of the worker's own, and the names of the metrics."""


def contributor(trainable: Trainable, replicas: Replicas, workers: Workers) -> Contribute:
    """Return a function that computes a worker's contribution; zeros, without computing, if its share has no row."""

    def compute(state: TrainState, batch: Any, rows: Any) -> tuple[Arrays, Arrays, Metrics]:
        return contribution(trainable, state, batch, rows, workers.index)

    compute = jax.jit(compute, out_shardings=replicas.whole)
    forms = MetricForms(workers)

    def contribute(state: TrainState, batch: Any) -> tuple[list[Any], Arrays, tuple[str, ...]]:
        rows = count_rows(batch, default=0)
        if rows:
            shared, own, metrics = compute(state, batch, np.float32(rows))
        else:
            shared, own, metrics = _empty_contribution(state)
        shapes = forms.agree({name: list(metrics[name].shape) for name in metrics} if rows else None)
        values = [metrics[name] if rows else np.zeros(shape, np.float32) for name, shape in shapes.items()]
        return [*shared, np.float32(rows), *values], own, tuple(shapes)

    return contribute


def contribution(
    trainable: Trainable, state: TrainState, batch: Any, rows: Any, worker: Any
) -> tuple[Arrays, Arrays, Metrics]:
    """Compute what a worker contributes with its share of a batch; traceable.

    Args:
        trainable: The model.
        state: Its state.
        batch: The worker's share.
        rows: The number of its rows: its weight.
        worker: The number of the worker; each draws its own random numbers.

    Returns:
        Arrays to be summed: gradients, then state that the workers share. State of the worker's own. Metrics, to be
        summed too.
    """
    grads, others, metrics = forward_and_back(trainable, state, batch, jax.random.fold_in(state.rng, worker))
    shared = [
        rows * new if kind == "mean" else new - old
        for kind, old, new in zip(state.kinds, state.flat_state, others, strict=True)
        if kind != "own"
    ]
    own = [other for kind, other in zip(state.kinds, others, strict=True) if kind == "own"]
    means = {name: rows * jnp.asarray(metric, jnp.float32) for name, metric in metrics.items()}
    return [*(rows * grad for grad in grads), *shared], own, means


def _empty_contribution(state: TrainState) -> tuple[Arrays, Arrays, Metrics]:
    """Return what a worker without a row contributes: zeros, its own state unchanged, and no metrics."""
    kinds = list(zip(state.kinds, state.flat_state, strict=True))
    shared = [*state.flat_params, *(each for kind, each in kinds if kind != "own")]
    own = [each for kind, each in kinds if kind == "own"]
    return [np.zeros(each.shape, each.dtype) for each in shared], own, {}


def sum_in_order(summands: Sequence[Sequence[Any]]) -> list[Any]:
    """Add up what all workers have contributed, in the order of the workers; traceable."""
    return [functools.reduce(jnp.add, map(widen_dtype, column)) for column in zip(*summands, strict=True)]


def apply_totals(
    trainable: Trainable, state: TrainState, totals: Sequence[Any], own: Arrays, names: Sequence[str]
) -> tuple[TrainState, Metrics]:
    """Return what `apply_sums` does, given the totals of what a `Contribute` returns; traceable."""
    *sums, rows = totals[: len(totals) - len(names)]
    metrics = dict(zip(names, totals[len(sums) + 1 :], strict=True))
    return apply_sums(trainable, state, sums, rows, own, metrics)


def apply_sums(
    trainable: Trainable, state: TrainState, sums: Sequence[Any], rows: Any, own: Arrays, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    """Return the state after an update, and the metrics of the global batch; traceable.

    Args:
        trainable: The model.
        state: Its state.
        sums: The sums of all workers' contributions, in their order.
        rows: The sum of their weights.
        own: State of this worker's own.
        metrics: The sums of their metrics.
    """
    scale = 1 / rows  # to divide every element would take several times as long
    next_sum, next_own = iter(sums), iter(own)
    grads = [(next(next_sum) * scale).astype(param.dtype) for param in state.flat_params]
    others = [
        next(next_own)
        if kind == "own"
        else (next(next_sum) * scale if kind == "mean" else old + next(next_sum)).astype(old.dtype)
        for kind, old in zip(state.kinds, state.flat_state, strict=True)
    ]
    means = {name: each * scale for name, each in metrics.items()}
    return state.updated(grads, others), {**means, **trainable.report(others)}


def widen_dtype(array: Any) -> Any:
    """Return an array in the dtype that it is summed in: half precision is summed in single."""
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32)) if is_floating else array


# Forms of batches.

_DIGEST_BYTES = 8
COLLECTING = np.frombuffer(b"gathering a state", np.uint8)
"""Sent in place of a form by a worker that collects a state of which each worker has a part."""


def form_of(batch: Any) -> Any:
    """Return the structure, shapes and types of a batch; hashable."""
    leaves, tree = jax.tree.flatten(batch)
    return tree, tuple([(np.shape(leaf), np.result_type(leaf)) for leaf in leaves])


def share_form(batch: Any) -> Array:
    """Return a digest of the form of a worker's share of a batch; empty if it has no row."""
    if not count_rows(batch, default=0):
        return np.zeros(0, np.uint8)
    return np.frombuffer(
        hashlib.blake2b(repr(form_of(batch)).encode(), digest_size=_DIGEST_BYTES).digest(), np.uint8
    )


def gather_forms(workers: Workers, own: Array) -> Sequence[Array]:
    """Gather the forms of all workers' shares of the next batch, or `COLLECTING` from all.

    Raises:
        StrategyError: Some train, and some collect a state.
    """
    forms = workers.gather(own)
    collecting = [worker for worker, form in enumerate(forms) if form.tobytes() == COLLECTING.tobytes()]
    if collecting and len(collecting) < len(forms):
        raise StrategyError(
            f"worker {collecting[0]} fetches or saves a state of which each worker has a part (shard_state=True), while "
            "others train: call strategy.fetch and Checkpointer.save on every worker, not on the chief alone; only the "
            "chief writes"
        )
    return forms


def all_alike(forms: Sequence[Array]) -> bool:
    """Return whether the shares of all workers have the same form, and rows."""
    return forms[0].size > 0 and all(form.tobytes() == forms[0].tobytes() for form in forms)


# Forms of metrics.

_Shapes: TypeAlias = dict[str, list[int]]
"""The shapes of metrics, by name."""


class MetricForms:
    """The names and shapes of metrics, which a worker that has not computed any learns from the others."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._shapes: _Shapes | None = None

    def agree(self, own: _Shapes | None) -> _Shapes:
        """Return the shapes, in the order of names; at the first step, ask the other workers.

        Args:
            own: The shapes of this worker's metrics; `None` if it has computed none.

        Raises:
            StrategyError: The workers have different metrics.
        """
        if self._shapes is None:
            self._shapes = self._compare(own)
        return self._shapes

    def check(self, own: _Shapes) -> None:
        """Compare the metrics of a batch of a new form; all workers call this together."""
        self._shapes = self._compare(own)

    def _compare(self, own: _Shapes | None) -> _Shapes:
        encoded = np.frombuffer(json.dumps(own, sort_keys=True).encode(), np.uint8)
        gathered: list[_Shapes | None] = [
            json.loads(each.tobytes()) for each in self._workers.gather(encoded)
        ]
        known = [shapes for shapes in gathered if shapes is not None]
        if any(shapes != known[0] for shapes in known):
            raise StrategyError(f"the workers' loss functions return different metrics: {known}")
        return known[0]
