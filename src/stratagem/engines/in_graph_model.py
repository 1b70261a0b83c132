"""A model on the parameter servers that a single client trains: where its values are, and what runs on which task.

Gradients go from the worker that computes them into slots on the servers, one for each worker; a program on each server
then updates what that server holds from the slots. Nothing of it passes the client but the batches and a few numbers.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.begun import Begun
from stratagem.engines.crew import Crew
from stratagem.engines.in_graph_leaf import ServedLeaf
from stratagem.engines.served_gradients import served_gradients
from stratagem.errors import StratagemError
from stratagem.keep import ShardRecord, TensorEntry
from stratagem.parameters.planning import ModelPlan
from stratagem.parameters.split import Part
from stratagem.runtime import RemoteFunction, RemoteVariable
from stratagem.runtime.fan_out import fan_out, results_of
from stratagem.runtime.wire import dtype_of
from stratagem.tables.table_files import NO_ROWS, NewRows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Share = tuple[int, int, Any]
"""The number of a share, its rows, and its part of the batch."""


class InGraphModel:
    """One model on the servers.

    Args:
        crew: The workers.
        plan: Who holds what.
        state: The state as it was planned, with initial values.
        in_step: Whether gradients are averaged over workers.
    """

    is_chief = True

    def __init__(self, name: str, crew: Crew, plan: ModelPlan, state: TrainState, in_step: bool) -> None:
        self.in_step = in_step
        self.form: TrainState = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        self.step = 0
        self._started = 0
        self._counting = threading.Lock()
        self._crew = crew
        self._plan = plan
        self._prefix = f"{crew.session.name}/{name}"
        self._closing: list[Callable[[], object]] = []
        self._notes: dict[str, bytes] = {}
        self._under_way: dict[int, Begun[Metrics]] = {}
        self._servers = [number for number, part in enumerate(plan.parts) if part.pieces or number == 0]
        self._held = self._put(plan.initial(state))
        pieces = [held[: len(part.pieces)] for held, part in zip(self._held, plan.parts, strict=True)]
        self._pieces = pieces
        self._gradients = [
            [
                [self._empty(each, f"gradients/{worker}") for each in own] if server in self._servers else []
                for server, own in enumerate(pieces)
            ]
            for worker in range(len(crew.tasks))
        ]
        kept = [
            None if kind == "mean" else np.asarray(each)
            for kind, each in zip(state.kinds, state.flat_state, strict=True)
        ]
        self._own: list[list[Any]] = [list(kept) for _ in crew.tasks]
        self._updates = {server: self._update_of(server) for server in self._servers}
        self._combine = jax.jit(self._combined)
        self._computes: dict[Trainable, RemoteFunction] = {}

    # What is where.

    def _put(self, initial: Sequence[Sequence[Any]]) -> list[list[RemoteVariable]]:
        options, session = self._plan.options, self._crew.session
        return [
            [
                session.variable(value, f"{self._prefix}/{held.name}", options.servers[server])
                for value, held in zip(values, [*config.leaves, *config.slots], strict=True)
            ]
            if server in self._servers
            else []
            for server, (values, config) in enumerate(zip(initial, self._plan.configs, strict=True))
        ]

    def _empty(self, like: RemoteVariable, what: str) -> RemoteVariable:
        name = f"{self._prefix}/{what}/{like.name.removeprefix(self._prefix + '/')}"
        return self._crew.session.variable(np.zeros(like.shape, dtype_of(like.dtype)), name, like.task)

    def _read(self) -> list[list[Any]]:
        """All that the servers hold."""

        def read(held: list[RemoteVariable]) -> list[Any]:
            peer, names = self._crew.session.peers[held[0].task], [each.name for each in held]
            return list(
                peer.call("variable.read", {"names": names}, timeout=self._crew.session.timeout).tensors
            )

        servers = [server for server in self._servers if self._held[server]]
        values = fan_out(read, [self._held[server] for server in servers], Begun)
        by_server = dict(zip(servers, values, strict=True))
        return [by_server.get(server, []) for server in range(len(self._held))]

    # Programs.

    def compute(self, trainable: Trainable) -> RemoteFunction:
        """What a worker computes: gradients for the servers, and for the client what little it needs."""
        if trainable not in self._computes:
            targets = _flat(self._gradients[0])
            program = _compute(trainable, self._plan, not self.in_step)
            self._computes[trainable] = self._crew.session.function(program, self._crew.tasks[0], targets)
        return self._computes[trainable]

    def _update_of(self, server: int) -> tuple[RemoteFunction, RemoteFunction]:
        """What a server runs: partials of what leaves share, and the update."""
        task, session = self._plan.options.servers[server], self._crew.session
        part = self._plan.parts[server]
        return (
            session.function(_partials(part), task),
            session.function(_update(part), task, self._held[server]),
        )

    def _combined(self, partials: list[list[Any]]) -> list[Any]:
        given = dict(zip(self._servers, partials, strict=True))
        return self._plan.combine([given.get(server, []) for server in range(len(self._plan.parts))])

    # Steps.

    def train(self, trainable: Trainable, shares: list[Share], seed: int, turn: int) -> Metrics:
        """Compute the shares, each on its worker, and make one update of them."""
        compute = self.compute(trainable)

        def run(share: Share) -> tuple[Metrics, Arrays, Arrays]:
            number, _, batch = share
            found: tuple[Metrics, Arrays, Arrays] = self._crew.run(
                compute,
                number,
                _flat(self._gradients[number]),
                self._pieces,
                self._own[number],
                np.int32(turn),
                seed,
                np.int32(number),
                batch,
            )
            return found

        results = fan_out(run, shares, Begun)
        for (number, *_), (_, own, _) in zip(shares, results, strict=True):
            self._own[number] = own
        rows = np.array([rows for _, rows, _ in shares], np.float64)
        weights = rows / rows.sum()
        step = self._update([number for number, *_ in shares], weights, results[0][2])
        names = results[0][0]
        means = {
            name: np.float32(
                sum(
                    weight * float(metrics[name])
                    for weight, (metrics, *_) in zip(weights, results, strict=True)
                )
            )
            for name in names
        }
        return {**means, "global_step": step}

    def _update(self, numbers: list[int], weights: Any, commons: Arrays) -> int:
        """Update what every server holds from these workers' gradients; the number of updates then."""
        shares = np.asarray(weights, np.float32)

        def gradients(server: int) -> list[list[RemoteVariable]]:
            return [self._gradients[number][server] for number in numbers]

        def partials(server: int) -> Any:
            return self._updates[server][0](gradients(server), shares)

        def update(server: int, commons: Arrays, step: int) -> None:
            self._updates[server][1](self._held[server], gradients(server), shares, commons, np.int32(step))

        if self.in_step and self._plan.plan.num_commons:
            commons = self._combine(self._on_servers(partials))
        with self._counting:
            before = self.step
            self.step += 1
        self._on_servers(update, [np.asarray(each) for each in commons], before)
        return before + 1

    def _on_servers(self, call: Callable[..., Any], *args: Any) -> list[Any]:
        return fan_out(lambda server: call(server, *args), self._servers, Begun)

    def begin(self, trainable: Trainable, rows: int, batch: Any, seed: int) -> Begun[Metrics]:
        """Start to train on a whole batch by one worker, when that is free; what is under way brings the metrics."""
        turn = self._started
        number = turn % len(self._crew.tasks)
        if number in self._under_way:
            self._under_way.pop(number).result()
        self._started += 1
        # Copied: the caller goes on, and may use the memory of this batch for the next.
        kept = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, batch)
        begun = Begun(self.train, trainable, [(number, rows, kept)], seed, turn)
        self._under_way[number] = begun
        return begun

    def settle(self) -> None:
        """Wait for all that is under way."""
        under_way, self._under_way = self._under_way, {}
        results_of(call.result for call in under_way.values())

    # As an `Elsewhere`.

    @property
    def has_pushed(self) -> bool:
        """See `Elsewhere`."""
        return self.step > 0

    def renew(self, state: TrainState) -> TrainState:
        """See `Elsewhere`; values are read when somebody looks at them."""
        recipe = state.recipe

        def leaf(number: int) -> ServedLeaf:
            shape = self.form.flat_params[number]
            return ServedLeaf(shape.shape, shape.dtype, lambda: self._plan.join(self._read())[number])

        params: Arrays = [leaf(number) for number in range(len(self.form.flat_params))]
        return TrainState(params, [], list(state.flat_state), None, np.int32(self.step), recipe)

    def fetch(self, state: TrainState) -> TrainState:
        """See `Elsewhere`."""
        self.settle()
        return self._plan.join_state(self._read(), self._own[0], self.step, state.recipe)

    def assign(
        self,
        state: TrainState,
        step: int | None = None,
        rows: NewRows = NO_ROWS,
    ) -> None:
        """See `Elsewhere`; state of the workers' own is not looked at."""
        self.settle()
        for held, values in zip(self._held, self._plan.scatter_state(state), strict=True):
            for place, value in values.items():
                held[place].assign(value)
        if step is not None:
            self.step = self._started = step

    def keep(
        self, root: str, make: Callable[[int], bool]
    ) -> tuple[int, Callable[[], tuple[list[ShardRecord], dict[str, TensorEntry]]] | None]:
        """See `Elsewhere`: these servers write nothing, the client does."""
        self.settle()
        make(self.step)
        return self.step, None

    def note(self, what: str, note: bytes) -> None:
        """See `Elsewhere`."""
        self._notes[what] = note

    def noted(self, what: str) -> bytes | None:
        """See `Elsewhere`: there is nobody but this client."""
        return self._notes.get(what)

    def when_closing(self, callback: Callable[[], object]) -> None:
        """See `Elsewhere`."""
        if callback not in self._closing:
            self._closing.append(callback)

    def parting(self) -> None:
        """See `Elsewhere`: there is nobody but this client."""

    def close(self) -> None:
        """Wait for what is under way, and take everything off the servers."""
        while self._closing:
            self._closing.pop()()
        self.settle()
        names: dict[str, list[str]] = {}
        for variable in [*_flat(self._held), *(each for own in self._gradients for each in _flat(own))]:
            names.setdefault(variable.task, []).append(variable.name)
        for task, own in names.items():
            with contextlib.suppress(StratagemError):  # the server is gone, and its variables with it
                self._crew.session.peers[task].call(
                    "variable.forget", {"names": own}, timeout=self._crew.session.timeout, wait=False
                )


def _flat(lists: Sequence[Sequence[RemoteVariable]]) -> list[RemoteVariable]:
    return [each for inner in lists for each in inner]


def _compute(trainable: Trainable, plan: ModelPlan, alone: bool) -> Callable[..., Any]:
    """Gradients and differences of the shared state by servers, then metrics, own state and what leaves share."""

    def compute(
        held: list[list[Any]], own: list[Any], turn: Any, seed: Any, number: Any, batch: Any
    ) -> tuple[Any, ...]:
        params, others = plan.params_and_state(held, own, jnp.concatenate)
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), turn), number)
        gradients, after, told, commons = served_gradients(
            trainable, plan, params, others, batch, rng, alone=alone
        )
        kept = [None if before is None else each for before, each in zip(own, after, strict=True)]
        return (*(each for pieces in plan.scatter(gradients) for each in pieces), (told, kept, commons))

    return compute


def _mean(gradients: list[list[Any]], weights: Any) -> list[Any]:
    """The mean of what several workers have computed, weighted by their rows."""
    return [
        column[0]
        if len(column) == 1
        else sum(weights[number].astype(each.dtype) * each for number, each in enumerate(column))
        for column in zip(*gradients, strict=True)
    ]


def _partials(part: Part) -> Callable[..., Any]:
    def partials(gradients: list[list[Any]], weights: Any) -> list[Any]:
        return part.partials(_mean(gradients, weights))

    return partials


def _update(part: Part) -> Callable[..., Any]:
    def update(
        held: list[Any], gradients: list[list[Any]], weights: Any, commons: list[Any], step: Any
    ) -> tuple[Any, ...]:
        count = len(part.pieces)
        leaves, slots = part.update(held[:count], held[count:], _mean(gradients, weights), commons, step)
        return (*leaves, *slots)

    return update
