"""How gradients become updates on parameter servers: computed here, pushed there, new parameters brought back."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from stratagem.errors import StrategyError
from stratagem.keep import ShardRecord, TensorEntry
from stratagem.parameters.delivery import Contribution
from stratagem.parameters.link import Link, Outcome
from stratagem.parameters.planning import JobOptions, ModelPlan
from stratagem.parameters.rules import Async, Sync
from stratagem.parameters.tie import Tie
from stratagem.strategies.engines import Step
from stratagem.strategies.replicas import Replicas
from stratagem.strategies.rows import count_rows
from stratagem.strategies.served_gradients import served_gradients
from stratagem.strategies.server_workers import ServerWorkers
from stratagem.strategies.step_log import StepLog
from stratagem.waist import Arrays, Metrics, Trainable, TrainState
from stratagem.waist.state import Parting


class ParameterServerEngine:
    """Variables on the parameter servers; every worker computes, with its devices in step.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
        options: The servers, and how they update.
    """

    is_elsewhere = True

    def __init__(self, replicas: Replicas, workers: ServerWorkers, options: JobOptions) -> None:
        self.replicas = replicas
        self._workers = workers
        self._options = options
        self._models = 0

    def lay_out(self, state: TrainState) -> TrainState:
        """Bring a state to the servers, or join those who have; what comes back has the parameters only."""
        plan = ModelPlan(f"model-{self._models}", state, state.recipe.names, self._options)
        self._models += 1
        workers = self._workers
        tie = Tie(workers.server, workers.index, workers.is_chief, plan, lambda: plan.initial(state))
        tie.connect()
        link = Link(tie)
        overlaps = isinstance(self._options.rule, Async) and self._options.rule.overlap
        model = _Served(plan, link, overlaps, workers, state)
        workers.use(model)
        recipe = replace(state.recipe, served=model)
        empty = TrainState([], [], list(state.flat_state), None, np.int32(0), recipe)
        return model.renewed(empty, link.pull())

    def build(self, trainable: Trainable) -> Step:
        """Compute, push, take what comes back."""
        index = self._workers.index
        averages = isinstance(self._options.rule, Sync)
        whole = self.replicas.whole
        log = StepLog()
        compiled: WeakKeyDictionary[_Served, Any] = WeakKeyDictionary()

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            model: _Served = state.recipe.served  # type: ignore[assignment]
            rows = count_rows(batch) if jax.tree.leaves(batch) else 0
            others, own, gradients, commons = state.flat_state, {}, model.nothing, []
            if rows:
                if model not in compiled:
                    compiled[model] = jax.jit(
                        _compute(trainable, model.plan, index, averages), out_shardings=whole
                    )
                grads, others, own, commons = compiled[model](
                    self._sent(state.flat_params),
                    self._sent(state.flat_state),
                    np.int32(state.step),
                    state.recipe.seed,
                    batch,
                )
                gradients = model.plan.scatter([_host(grad) for grad in grads])
            told = {name: float(value) for name, value in own.items()} if averages else {}
            shared = [_host(common) for common in commons]
            outcome = model.push(Contribution(rows, gradients, shared, told, int(state.step)))
            metrics = dict(outcome.metrics) if averages and outcome.metrics else own
            log.count(rows, outcome.update, metrics)
            kept = replace(state, flat_state=list(others))
            told = {**metrics, "global_step": outcome.update, "dropped": model.link.dropped}
            if outcome.staleness is not None:
                told["staleness"] = outcome.staleness
            return model.renewed(kept, outcome), told

        return step

    def _sent(self, arrays: Arrays) -> Arrays:
        """Arrays where this worker computes: a single CPU device reads them in place."""
        if len(self.replicas) == 1 and self.replicas.devices[0].platform == "cpu":
            return arrays
        placed: Arrays = jax.device_put(arrays, self.replicas.whole)
        return placed


def _compute(trainable: Trainable, plan: ModelPlan, index: int, averages: bool) -> Any:
    """Gradients, differences of the shared state, and what they have in common; to be compiled."""

    def compute(
        params: Arrays, others: Arrays, step: Any, seed: Any, batch: Any
    ) -> tuple[Arrays, Arrays, Metrics, Arrays]:
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), index)
        return served_gradients(trainable, plan, params, others, batch, rng, alone=not averages)

    return compute


def _host(array: Any) -> Any:
    """The array as the host sees it: one copy of it, where there is one on every device."""
    return np.asarray(array if array.is_fully_replicated else array.addressable_data(0))


class _Served:
    """One model on the servers, as this worker trains it.

    Args:
        plan: Who holds what.
        link: The tie to the servers.
        overlaps: Whether to compute on while a push is under way.
        workers: The workers, of whom the chief may set values.
        state: The state as it was planned.
    """

    def __init__(
        self, plan: ModelPlan, link: Link, overlaps: bool, workers: ServerWorkers, state: TrainState
    ) -> None:
        self.plan = plan
        self.link = link
        self.is_chief = workers.is_chief
        self._workers = workers
        self.in_step = isinstance(plan.options.rule, Sync)
        self.form: TrainState = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self._closing: list[Callable[[], object]] = []
        self.nothing: list[list[Any]] = [[] for _ in plan.parts]
        self._overlaps = overlaps
        self._under_way: Callable[[], Outcome] | None = None

    def push(self, brought: Contribution) -> Outcome:
        """Push; with overlap, start to, and come back with what the push before it brought."""
        if not self._overlaps:
            return self.link.push(brought)
        before = self.settle()
        self._under_way = self.link.begin(brought)
        return before or Outcome("begun", brought.base or 0)

    def settle(self) -> Outcome | None:
        """Wait for the push that is under way, if there is one; what came of it."""
        result, self._under_way = self._under_way, None
        return None if result is None else result()

    def renewed(self, state: TrainState, outcome: Outcome) -> TrainState:
        """The state with what came back from the servers."""
        if outcome.leaves is None:
            return state
        params, shared = self.plan.split_leaves(self.plan.join(outcome.leaves))
        others = self.plan.with_shared(state.flat_state, shared)
        return replace(state, flat_params=params, flat_state=others, step=np.int32(outcome.step))

    def fetch(self, state: TrainState) -> TrainState:
        """All of it, at one step, from the servers."""
        self.settle()
        step, held = self.link.fetch()
        others = [np.array(each) for each in state.flat_state]
        return self.plan.whole(held, others, step, state.recipe)

    @property
    def has_pushed(self) -> bool:
        """See `Elsewhere`."""
        return self.link.has_pushed

    def renew(self, state: TrainState) -> TrainState:
        """See `Elsewhere`."""
        self.settle()
        return self.renewed(state, self.link.pull())

    def assign(self, state: TrainState, step: int | None = None) -> None:
        """See `Elsewhere`; state of a worker's own is not the servers' and is not looked at.

        Raises:
            StrategyError: This worker is not the chief.
        """
        if not self.is_chief:
            raise StrategyError(
                "only the chief may set values on the parameter servers: ask strategy.is_chief"
            )
        self.settle()
        self.link.assign(self.plan.placed(state), step)
        if step is not None:
            self.link.pull()

    def keep(
        self, root: str, make: Callable[[int], bool]
    ) -> tuple[int, Callable[[], tuple[list[ShardRecord], dict[str, TensorEntry]]] | None]:
        """See `Elsewhere`."""
        self.settle()
        step, are_writing = self.link.keep(root, make)
        return step, partial(self._kept, root, step) if are_writing else None

    def _kept(self, root: str, step: int) -> tuple[list[ShardRecord], dict[str, TensorEntry]]:
        records = self.link.kept(root, step)
        numbers = self.plan.shared(range(len(self.form.flat_state)))
        names = {f"state/{place}": f"state/{number}" for place, number in enumerate(numbers)}
        return records, {
            names.get(name, name): TensorEntry.joined([(records[server], key) for server, key in pieces])
            for name, pieces in self.plan.configs[0].tensors
        }

    def note(self, what: str, note: bytes) -> None:
        """See `Elsewhere`."""
        self.link.meetings.note(what, note)

    def noted(self, what: str) -> bytes | None:
        """See `Elsewhere`."""
        self.settle()
        return self.link.meetings.noted(what)

    def when_closing(self, callback: Callable[[], object]) -> None:
        """See `Elsewhere`."""
        if callback not in self._closing:
            self._closing.append(callback)

    def parting(self) -> Parting | None:
        """See `Elsewhere`."""
        return self._workers.parting()

    def close(self) -> None:
        """Wait for what is under way, and end."""
        while self._closing:
            self._closing.pop()()
        self.settle()
        self.link.close()
