"""How gradients become an update: one compiled step where variables are mirrored, two where they are central.

An engine lays a state over devices and builds the step that trains it. Which one a strategy has is all that
tells it from the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from stratagem.engines.local_rows import LocalRows
from stratagem.engines.pieces import optimizer_in_pieces
from stratagem.engines.replicas import Lookahead, Replicas
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Step = Callable[[TrainState, Any], tuple[TrainState, Metrics]]
"""Takes a state and a batch that is on the devices; gives the next state and the metrics."""


class Engine(Protocol):
    """Where variables live, and how they are updated.

    Attributes:
        replicas: The devices that compute.
        is_elsewhere: Whether variables live with other processes, and are here only while they are computed with.
    """

    replicas: Replicas
    is_elsewhere: bool

    def lay_out(self, state: TrainState) -> TrainState:
        """Put a state where it lives."""
        ...

    def build(self, trainable: Trainable) -> Step:
        """The step that trains it."""
        ...


@runtime_checkable
class KeepsTables(Protocol):
    """An engine that can train tables too."""

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        """The rows of tables that are to be trained with a state that is laid out next.

        Args:
            tables: The tables.
            optimizer: That of tables that bring none.
        """
        ...


def forward_and_back(
    trainable: Trainable, state: TrainState, batch: Any, rng: jax.Array
) -> tuple[Arrays, Arrays, Metrics]:
    """Gradients, new non-trained state and metrics of one batch; traceable."""
    seen = [*state.flat_state, *state.flat_opt_state] if trainable.reads_optimizer else state.flat_state
    (loss, others, metrics), grads = trainable.loss_and_grad(state.flat_params, seen, batch, rng)
    return grads, others, {**metrics, "loss": loss}


class LocalEngine:
    """What engines have in common whose variables are with this process.

    Args:
        replicas: The devices that compute.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        """Rows in the memory of this process."""
        self.replicas.lookahead = Lookahead(1)
        return LocalRows(tables, optimizer)


class MirroredEngine(LocalEngine):
    """Variables on every device; XLA inserts the all-reduce into one compiled step.

    Args:
        replicas: The devices that compute.
        shards_state: Whether each device keeps and updates its part of the optimizer's state only.
    """

    def __init__(self, replicas: Replicas, shards_state: bool = False) -> None:
        super().__init__(replicas)
        self._shards = replicas.mesh if shards_state else None

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device; of the optimizer's state a part, if that is wanted."""
        places = self.replicas.whole if self._shards is None else optimizer_in_pieces(state, self._shards)
        laid_out: TrainState = jax.device_put(state, places)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """One step, which takes over the memory of the state it is given."""

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            grads, others, metrics = forward_and_back(trainable, state, batch, state.rng)
            return state.updated(grads, others), {**metrics, **trainable.report(others)}

        program: Step = training_program(step, self.replicas.whole, self._shards)
        return program


def training_program(
    step: Callable[..., Any], whole: Sharding, shards: Mesh | None, static_argnames: str | None = None
) -> Any:
    """A step as one compiled program, which takes over the memory of the state that it is given.

    Args:
        step: The step; traceable.
        whole: How what it makes lies on the devices.
        shards: The devices among which the optimizer's state is shared out, if it is: then what its parts make of the
            parameters is gathered.
        static_argnames: The argument that is not an array, if there is one.
    """
    if shards is None:
        return jax.jit(step, donate_argnums=0, out_shardings=whole, static_argnames=static_argnames)

    def in_pieces(state: TrainState, *args: Any, **static: Any) -> tuple[TrainState, Metrics]:
        after, metrics = step(state, *args, **static)
        after = jax.lax.with_sharding_constraint(after, optimizer_in_pieces(after, shards))
        return after, jax.lax.with_sharding_constraint(metrics, jax.tree.map(lambda _: whole, metrics))

    return jax.jit(in_pieces, donate_argnums=0, static_argnames=static_argnames)


class CentralEngine(LocalEngine):
    """Variables once; every device computes, one place updates.

    Args:
        replicas: The devices that compute.
        home: Where the variables live: a device, in its own memory or in its host's.
    """

    def __init__(self, replicas: Replicas, home: SingleDeviceSharding) -> None:
        super().__init__(replicas)
        self._home = home
        (self._device,) = home.device_set
        self._near = SingleDeviceSharding(self._device)
        self._is_near = home.memory_kind == self._near.memory_kind

    def lay_out(self, state: TrainState) -> TrainState:
        """Everything at home."""
        laid_out: TrainState = jax.device_put(state, self._home)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """Send the parameters out, bring the gradients home, update there."""

        def compute(state: TrainState, batch: Any) -> tuple[Arrays, Arrays, Metrics]:
            grads, others, metrics = forward_and_back(trainable, state, batch, state.rng)
            return grads, others, {**metrics, **trainable.report(others)}

        def update(state: TrainState, grads: Arrays, others: Arrays) -> TrainState:
            # XLA computes in a device's own memory only.
            fetched = state if self._is_near else jax.device_put(state, self._near)
            return fetched.updated(grads, others)

        computed = jax.jit(compute, out_shardings=self.replicas.whole)
        updated = jax.jit(update, donate_argnums=0, out_shardings=self._home)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            # What nothing that computes needs stays at home.
            read = state.flat_opt_state if trainable.reads_optimizer else []
            sent = TrainState(state.flat_params, read, state.flat_state, None, state.step, state.recipe)
            grads, others, metrics = computed(self._send(sent), batch)
            grads, others = self.replicas.copy_on(self._device, (grads, others))
            return updated(state, grads, others), metrics

        return step

    def _send(self, value: Any) -> Any:
        """What is at home, whole on every device that computes."""
        devices, whole = self.replicas.devices, self.replicas.whole
        if not self._is_near or self._device not in devices or len(devices) == 1:
            return jax.device_put(value, whole)
        # The home device computes on the variables themselves: only the others get copies.
        leaves, tree = jax.tree.flatten(value)
        copies = [leaves if device == self._device else jax.device_put(leaves, device) for device in devices]
        return jax.tree.unflatten(
            tree,
            [
                jax.make_array_from_single_device_arrays(leaf.shape, whole, list(column))
                for leaf, *column in zip(leaves, *copies, strict=True)
            ],
        )
