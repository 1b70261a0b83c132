"""A model on the parameter servers that a single client trains: where its values are, and what runs on which task.

Gradients go from the worker that computes them into variables on the servers, one set for each worker; a program on each
server then updates what that server holds from them. Only the batches and a few numbers pass through the client.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.server_steps import server_gradients, worker_key
from stratagem.engines.worker_pool import BackgroundCall, WorkerPool
from stratagem.errors import StratagemError
from stratagem.parameters.planning import ModelPlan
from stratagem.parameters.split import Part
from stratagem.runtime import RemoteFunction, RemoteVariable
from stratagem.runtime.fan_out import fan_out, results_of
from stratagem.runtime.wire import dtype_of
from stratagem.tables.table_files import NO_ROWS, NewRows
from stratagem.waist import Arrays, Metrics, Trainable, TrainState
from stratagem.waist.home import ServerHome

Share = tuple[int, int, Any]
"""The number of a worker, the number of rows in its share of the batch, and the share."""


class InGraphModel(ServerHome):
    """One model on the servers.

    Args:
        name: Names the model within its job.
        pool: The workers.
        plan: Which server holds what.
        state: The state as it was planned, with initial values.
        in_step: Whether gradients are averaged over workers.
    """

    is_chief = True

    def __init__(
        self, name: str, pool: WorkerPool, plan: ModelPlan, state: TrainState, in_step: bool
    ) -> None:
        super().__init__(state)
        self.in_step = in_step
        self.step = 0
        self._started = 0
        self._counting = threading.Lock()
        self._pool = pool
        self._plan = plan
        self._prefix = f"{pool.session.name}/{name}"
        self._notices: dict[str, bytes] = {}
        self._under_way: dict[int, BackgroundCall[Metrics]] = {}
        self._servers = [number for number, part in enumerate(plan.parts) if part.pieces or number == 0]
        self._variables = self._create_variables(plan.initial(state))
        self._pieces = [
            own[: len(part.pieces)] for own, part in zip(self._variables, plan.parts, strict=True)
        ]
        self._gradients = [
            [
                [self._zeros(each, f"gradients/{worker}") for each in own] if server in self._servers else []
                for server, own in enumerate(self._pieces)
            ]
            for worker in range(len(pool.tasks))
        ]
        own_state = [
            None if kind == "mean" else np.asarray(each)
            for kind, each in zip(state.kinds, state.flat_state, strict=True)
        ]
        self._own_state: list[list[Any]] = [list(own_state) for _ in pool.tasks]
        self._updates = {server: self._update_functions(server) for server in self._servers}
        self._combine = jax.jit(self._combined)
        self._computes: dict[Trainable, RemoteFunction] = {}

    # What is where.

    def _create_variables(self, initial: Sequence[Sequence[Any]]) -> list[list[RemoteVariable]]:
        options, session = self._plan.options, self._pool.session
        return [
            [
                session.variable(value, f"{self._prefix}/{held.name}", options.servers[server])
                for value, held in zip(values, [*config.leaves, *config.slots], strict=True)
            ]
            if server in self._servers
            else []
            for server, (values, config) in enumerate(zip(initial, self._plan.configs, strict=True))
        ]

    def _zeros(self, like: RemoteVariable, what: str) -> RemoteVariable:
        name = f"{self._prefix}/{what}/{like.name.removeprefix(self._prefix + '/')}"
        return self._pool.session.variable(np.zeros(like.shape, dtype_of(like.dtype)), name, like.task)

    def _read(self) -> list[list[Any]]:
        """Return, for each server, the values of all its variables."""

        def read(variables: list[RemoteVariable]) -> list[Any]:
            peer, names = self._pool.session.peers[variables[0].task], [each.name for each in variables]
            return list(
                peer.call("variable.read", {"names": names}, timeout=self._pool.session.timeout).tensors
            )

        servers = [server for server in self._servers if self._variables[server]]
        values = fan_out(read, [self._variables[server] for server in servers], BackgroundCall)
        by_server = dict(zip(servers, values, strict=True))
        return [by_server.get(server, []) for server in range(len(self._variables))]

    # Programs.

    def compute(self, trainable: Trainable) -> RemoteFunction:
        """Return what a worker runs: it sends gradients to the servers, and the client the little that it needs."""
        if trainable not in self._computes:
            targets = _flat(self._gradients[0])
            program = _compute(trainable, self._plan, not self.in_step)
            self._computes[trainable] = self._pool.session.function(program, self._pool.tasks[0], targets)
        return self._computes[trainable]

    def _update_functions(self, server: int) -> tuple[RemoteFunction, RemoteFunction]:
        """Return what a server runs: its part of what the gradients have in common, and the update."""
        task, session = self._plan.options.servers[server], self._pool.session
        part = self._plan.parts[server]
        return (
            session.function(_partials(part), task),
            session.function(_update(part), task, self._variables[server]),
        )

    def _combined(self, partials: list[list[Any]]) -> list[Any]:
        by_server = dict(zip(self._servers, partials, strict=True))
        return self._plan.combine([by_server.get(server, []) for server in range(len(self._plan.parts))])

    # Steps.

    def train(self, trainable: Trainable, shares: list[Share], seed: int, turn: int) -> Metrics:
        """Compute the shares, each on its worker, and make one update of them."""
        compute = self.compute(trainable)

        def run(share: Share) -> tuple[Metrics, Arrays, Arrays]:
            number, _, batch = share
            result: tuple[Metrics, Arrays, Arrays] = self._pool.run(
                compute,
                number,
                _flat(self._gradients[number]),
                self._pieces,
                self._own_state[number],
                np.int32(turn),
                seed,
                np.int32(number),
                batch,
            )
            return result

        results = fan_out(run, shares, BackgroundCall)
        for (number, *_), (_, own, _) in zip(shares, results, strict=True):
            self._own_state[number] = own
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
        """Update what every server holds from these workers' gradients, and return the number of updates so far."""
        shares = np.asarray(weights, np.float32)

        def gradients(server: int) -> list[list[RemoteVariable]]:
            return [self._gradients[number][server] for number in numbers]

        def partials(server: int) -> Any:
            return self._updates[server][0](gradients(server), shares)

        def update(server: int, commons: Arrays, step: int) -> None:
            self._updates[server][1](
                self._variables[server], gradients(server), shares, commons, np.int32(step)
            )

        if self.in_step and self._plan.plan.num_commons:
            commons = self._combine(self._on_servers(partials))
        with self._counting:
            before = self.step
            self.step += 1
        self._on_servers(update, [np.asarray(each) for each in commons], before)
        return before + 1

    def _on_servers(self, call: Callable[..., Any], *args: Any) -> list[Any]:
        return fan_out(lambda server: call(server, *args), self._servers, BackgroundCall)

    def begin(self, trainable: Trainable, rows: int, batch: Any, seed: int) -> BackgroundCall[Metrics]:
        """Start to train one worker on a whole batch, once it is free, and return the call that brings the metrics."""
        turn = self._started
        number = turn % len(self._pool.tasks)
        if number in self._under_way:
            self._under_way.pop(number).result()
        self._started += 1
        # Copied: the caller goes on, and may use the memory of this batch for the next.
        copy = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, batch)
        call = BackgroundCall(self.train, trainable, [(number, rows, copy)], seed, turn)
        self._under_way[number] = call
        return call

    def settle(self) -> None:
        """Wait for all calls that are under way."""
        under_way, self._under_way = self._under_way, {}
        results_of(call.result for call in under_way.values())

    # As a home.

    @property
    def has_pushed(self) -> bool:
        return self.step > 0

    def renew(self, state: TrainState) -> TrainState:
        """Return the state with parameters that read their values from the servers when they are looked at."""
        recipe = state.recipe

        def leaf(number: int) -> ServerLeaf:
            form = self.form.flat_params[number]
            return ServerLeaf(form.shape, form.dtype, lambda: self._plan.join(self._read())[number])

        params: Arrays = [leaf(number) for number in range(len(self.form.flat_params))]
        return TrainState(params, [], list(state.flat_state), None, np.int32(self.step), recipe)

    def fetch(self, state: TrainState) -> TrainState:
        self.settle()
        return self._plan.join_state(self._read(), self._own_state[0], self.step, state.recipe)

    def assign(self, state: TrainState, step: int | None = None, rows: NewRows = NO_ROWS) -> None:
        self.settle()
        for variables, values in zip(self._variables, self._plan.scatter_state(state), strict=True):
            for place, value in values.items():
                variables[place].assign(value)
        if step is not None:
            self.step = self._started = step

    def save(self, root: str, make: Callable[[int], bool]) -> tuple[int, None]:
        """Leave the writing to the client: these servers write nothing."""
        self.settle()
        make(self.step)
        return self.step, None

    def post_notice(self, topic: str, notice: bytes) -> None:
        self._notices[topic] = notice

    def wait_for_notice(self, topic: str) -> bytes | None:
        """Return the notice on a topic: no other process posts any."""
        return self._notices.get(topic)

    def preemption_notice(self) -> None:
        """Return `None`: no other process waits for this one."""

    def close(self) -> None:
        """Wait for calls under way, and remove all variables from the servers."""
        self._call_before_closing()
        self.settle()
        names: dict[str, list[str]] = {}
        for variable in [*_flat(self._variables), *(each for own in self._gradients for each in _flat(own))]:
            names.setdefault(variable.task, []).append(variable.name)
        for task, own in names.items():
            with contextlib.suppress(StratagemError):  # the server is gone, and its variables with it
                self._pool.session.peers[task].call(
                    "variable.forget", {"names": own}, timeout=self._pool.session.timeout, wait=False
                )


class ServerLeaf:
    """A parameter whose value is on the servers; `np.asarray` reads it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, read: Callable[[], Any]) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.ndim = len(self.shape)
        self._read = read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._read(), dtype)

    def __repr__(self) -> str:
        return f"ServerLeaf({self.dtype}{list(self.shape)}, on the servers: np.asarray reads it)"


def _flat(lists: Sequence[Sequence[RemoteVariable]]) -> list[RemoteVariable]:
    return [each for inner in lists for each in inner]


def _compute(trainable: Trainable, plan: ModelPlan, alone: bool) -> Callable[..., Any]:
    """Return a worker's function: gradients by server, then metrics, own state and what the gradients have in common."""

    def compute(
        pieces: list[list[Any]], own: list[Any], turn: Any, seed: Any, number: Any, batch: Any
    ) -> tuple[Any, ...]:
        params, others = plan.params_and_state(pieces, own, jnp.concatenate)
        rng = worker_key(seed, turn, number)
        gradients, after, metrics, commons = server_gradients(
            trainable, plan, params, others, batch, rng, alone=alone
        )
        own_after = [None if before is None else each for before, each in zip(own, after, strict=True)]
        scattered = (each for by_server in plan.scatter(gradients) for each in by_server)
        return (*scattered, (metrics, own_after, commons))

    return compute


def _mean(gradients: list[list[Any]], weights: Any) -> list[Any]:
    """Return the mean of several workers' gradients, weighted by their rows."""
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
        variables: list[Any], gradients: list[list[Any]], weights: Any, commons: list[Any], step: Any
    ) -> tuple[Any, ...]:
        count = len(part.pieces)
        leaves, slots = part.update(
            variables[:count], variables[count:], _mean(gradients, weights), commons, step
        )
        return (*leaves, *slots)

    return update
