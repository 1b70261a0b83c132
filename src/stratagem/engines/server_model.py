"""A model on the parameter servers, as one worker trains it: what it pushes, what has come back, and how old that is."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from stratagem.engines.engine import Step
from stratagem.engines.row_prefetch import RowPrefetcher, RowsOfBatch
from stratagem.engines.table_trainables import TableTrainable
from stratagem.errors import StrategyError
from stratagem.keep import TensorEntry
from stratagem.parameters.exchanges import Label
from stratagem.parameters.planning import ModelPlan
from stratagem.parameters.push import Contribution, Outcome, TrainingClient
from stratagem.parameters.rendezvous import Rendezvous
from stratagem.parameters.served_tables import ServerRows
from stratagem.tables.table_files import NO_ROWS, NewRows
from stratagem.waist import Arrays, TrainState
from stratagem.waist.home import PreemptionNotice, ServerHome, Shards

_LEAST_AGE = 0.005
"""Seconds that parameters may always be old: asking for newer ones takes time, too."""
_OUTLIER = 10.0
"""A computation that took this many times as long as the one before it was compiled, or stood still."""
_OUTLIER_SECONDS = 0.1


class ParameterAge:
    """Decides when a worker asks for newer parameters before it computes: when they are older than computing makes them.

    Parameters come with the answer to a push. Whatever passes between that and the next push is staleness: computing,
    which asynchronous training is about, but also a slow input, a checkpoint, or a compiler at work.
    """

    def __init__(self) -> None:
        self._came = self._began = time.monotonic()
        self._last: float | None = None

    def reset(self) -> None:
        """Note that the newest parameters have come."""
        self._came = self._began = time.monotonic()

    def is_too_great(self) -> bool:
        """Begin a computation, and return whether newer parameters should be asked for first."""
        self._began = time.monotonic()
        return self._began - self._came > max(_LEAST_AGE, self._last or 0.0)

    def was_as_ever(self) -> bool:
        """End a computation, and return whether it took about as long as the one before; the first one did not."""
        seconds, before = time.monotonic() - self._began, self._last
        self._last = seconds
        return before is not None and seconds < _OUTLIER * before + _OUTLIER_SECONDS


class ServerModel(ServerHome):
    """One model on the servers, as this worker trains it.

    Args:
        plan: Which server holds what.
        client: Calls the servers.
        overlaps: Whether to compute while a push is under way.
        is_chief: Whether this worker may set values.
        notice: Carries preemption notices between the workers; `None` if they are not in step.
        state: The state as it was planned.

    Attributes:
        rendezvous: Where its workers meet.
        compiled: For each step that trains the model, what it computes here.
        push: Pushes, and returns the outcome; if pushes overlap with computing, the outcome of the push before.
        age: The age of the parameters that this worker has.
        is_closed: Whether this worker has left the model.
    """

    def __init__(
        self,
        plan: ModelPlan,
        client: TrainingClient,
        overlaps: bool,
        is_chief: bool,
        notice: PreemptionNotice | None,
        state: TrainState,
    ) -> None:
        super().__init__(state)
        self.plan = plan
        self.client = client
        self.rendezvous = Rendezvous(client)
        self.is_chief = is_chief
        self._notice = notice
        self.in_step = plan.options.rule.averages_pushes
        self.compiled: dict[Step, Callable[..., Any]] = {}
        self._source = state.recipe.tables
        self._prefetchers: dict[TableTrainable, RowPrefetcher] = {}
        self.push = self._begin_push if overlaps else self._push
        self._under_way: tuple[Callable[[], Outcome], RowsOfBatch | None] | None = None
        self._last_outcome: Outcome | None = None
        self.age = ParameterAge()
        self.is_closed = False

    # Pushes.

    def _push(self, contribution: Contribution, following: RowsOfBatch | None) -> Outcome:
        return _keep_rows(self.client.push(contribution), following)

    def _begin_push(self, contribution: Contribution, following: RowsOfBatch | None) -> Outcome:
        before = self._take_outcome()
        self._under_way = self.client.begin(contribution), following
        return before or Outcome("begun", contribution.base or 0)

    def _take_outcome(self) -> Outcome | None:
        """Wait for the push under way, and return the last push's outcome, unless it was returned before."""
        self.settle()
        outcome, self._last_outcome = self._last_outcome, None
        return outcome

    def settle(self) -> None:
        """Wait for the push that is under way, if there is one."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            result, following = under_way
            self._last_outcome = _keep_rows(result(), following)

    # States.

    def prefetcher(self, trainable: TableTrainable, distance: int) -> RowPrefetcher:
        """Return what fetches the rows that the steps of a trainable need, which look this many steps ahead."""
        if trainable not in self._prefetchers:
            source: ServerRows = self._source  # type: ignore[assignment]
            self._prefetchers[trainable] = RowPrefetcher(source, trainable, distance)
        return self._prefetchers[trainable]

    def after_push(self, state: TrainState) -> TrainState:
        """Return the state with the outcome of the push that is under way."""
        outcome = self._take_outcome()
        return state if outcome is None else self.with_outcome(state, outcome)

    def with_outcome(self, state: TrainState, outcome: Outcome, others: Arrays | None = None) -> TrainState:
        """Return the state with what came back from the servers.

        Args:
            state: The state before.
            outcome: What came back.
            others: The non-trained state after this worker's step; by default unchanged.
        """
        params, step = state.flat_params, state.step
        others = list(state.flat_state if others is None else others)
        if outcome.leaves is not None:
            params, others = self.plan.params_and_state(outcome.leaves, others)
            step = np.int32(outcome.step)
            self.age.reset()
        return TrainState(params, state.flat_opt_state, others, state.flat_ema, step, state.recipe)

    def with_fresh_params(self, state: TrainState) -> TrainState:
        """Return the state with the servers' present parameters, if those that came with the last push are too old."""
        if not self.age.is_too_great():
            return state
        newer = self.client.pull_newer(int(state.step))
        self.age.reset()
        return state if newer is None else self.with_outcome(state, newer)

    def _forget(self) -> None:
        """Discard what has come so far: values are about to change."""
        self.settle()
        self._last_outcome = None
        for prefetcher in self._prefetchers.values():
            prefetcher.forget()

    # What Keras's `fit` needs beside.

    def end_fit(self, fit: int) -> None:
        """Tell the other workers that this one has come to the end of a fit."""
        self.settle()
        self.rendezvous.end_fit(fit)

    def agreed(self, state: TrainState, label: Label) -> TrainState:
        """Return the state with the values that all workers evaluate under a label; not to be trained on."""
        self.settle()
        params, others = self.plan.params_and_state(self.rendezvous.agreed(label), list(state.flat_state))
        return replace(state, flat_params=params, flat_state=others)

    # As a home.

    @property
    def has_pushed(self) -> bool:
        return self.client.has_pushed

    def fetch(self, state: TrainState) -> TrainState:
        self.settle()
        step, arrays = self.client.fetch()
        others = [np.array(each) for each in state.flat_state]
        return self.plan.join_state(arrays, others, step, state.recipe)

    def renew(self, state: TrainState) -> TrainState:
        self._forget()
        return self.with_outcome(state, self.client.pull())

    def assign(self, state: TrainState, step: int | None = None, rows: NewRows = NO_ROWS) -> None:
        if not self.is_chief:
            raise StrategyError(
                "only the chief may set values on the parameter servers: ask strategy.is_chief"
            )
        self._forget()
        self.client.assign(self.plan.scatter_state(state), step, rows)
        if step is not None:
            self.client.pull()

    def save(self, root: str, make: Callable[[int], bool]) -> tuple[int, Callable[[], Shards] | None]:
        self.settle()
        step, are_writing = self.client.keep(root, make)
        return step, partial(self._wait_for_shards, root, step) if are_writing else None

    def _wait_for_shards(self, root: str, step: int) -> Shards:
        records = self.client.shard_records(root, step)
        numbers = self.plan.shared(range(len(self.form.flat_state)))
        names = {f"state/{place}": f"state/{number}" for place, number in enumerate(numbers)}
        return records, {
            names.get(name, name): TensorEntry.join([(records[server], key) for server, key in pieces])
            for name, pieces in self.plan.configs[0].tensors
        }

    def post_notice(self, topic: str, notice: bytes) -> None:
        self.rendezvous.note(topic, notice)

    def wait_for_notice(self, topic: str) -> bytes | None:
        self.settle()
        return self.rendezvous.read_note(topic)

    def preemption_notice(self) -> PreemptionNotice | None:
        return self._notice

    def close(self) -> None:
        """Wait for what is under way, and leave the model."""
        self.is_closed = True
        self._call_before_closing()
        self.settle()
        self.client.close()


def _keep_rows(outcome: Outcome, following: RowsOfBatch | None) -> Outcome:
    """Store the rows that came with a push where the step that needs them finds them."""
    if following is not None and outcome.rows is not None:
        following.set_values(outcome.rows)
    return outcome
