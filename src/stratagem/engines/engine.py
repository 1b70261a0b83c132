"""The interface of engines, and what they share: an engine lays a state over devices and builds the step that trains it.

Strategies differ in their engine and their workers, and in nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
from jax.sharding import Mesh, Sharding

from stratagem.engines.meshes import optimizer_in_shards
from stratagem.engines.replicas import Replicas
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.waist import Arrays, Metrics, Trainable, TrainState

Step = Callable[[TrainState, Any], tuple[TrainState, Metrics]]
"""Takes a state and a batch that is on the devices; returns the next state and the metrics."""


class Engine(ABC):
    """Where variables live, and how they are updated.

    Attributes:
        replicas: The devices that compute.
        is_elsewhere: Whether variables live on servers, and are here only while they are computed with.
    """

    is_elsewhere: ClassVar[bool] = False

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas

    @abstractmethod
    def lay_out(self, state: TrainState) -> TrainState:
        """Put a state where it lives."""

    @abstractmethod
    def build(self, trainable: Trainable) -> Step:
        """Build the step that trains a state. The step takes over the memory of the state that it is given."""

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource | None:
        """Create the rows of tables that are trained with the state that is laid out next.

        Args:
            tables: The tables.
            optimizer: The optimizer of tables that bring none.

        Returns:
            The rows; `None` if this engine cannot train tables.
        """
        return None


def forward_and_back(
    trainable: Trainable, state: TrainState, batch: Any, rng: jax.Array
) -> tuple[Arrays, Arrays, Metrics]:
    """Compute gradients, new non-trained state and metrics of one batch; traceable."""
    visible = [*state.flat_state, *state.flat_opt_state] if trainable.reads_optimizer else state.flat_state
    (loss, others, metrics), grads = trainable.loss_and_grad(state.flat_params, visible, batch, rng)
    return grads, others, {**metrics, "loss": loss}


def gradient_inputs(trainable: Trainable, state: TrainState) -> TrainState:
    """Return the part of a state that computing gradients reads."""
    opt_state = state.flat_opt_state if trainable.reads_optimizer else []
    return TrainState(state.flat_params, opt_state, state.flat_state, None, state.step, state.recipe)


def training_program(
    step: Callable[..., Any], whole: Sharding, shards: Mesh | None, static_argnames: str | None = None
) -> Any:
    """Compile a step into one program, which takes over the memory of the state that it is given.

    Args:
        step: The step; traceable.
        whole: The sharding of its results.
        shards: The devices that share out the optimizer's state, if they do: the parameters are then gathered after
            each device has updated its part of them.
        static_argnames: The argument that is not an array, if there is one.
    """
    if shards is None:
        return jax.jit(step, donate_argnums=0, out_shardings=whole, static_argnames=static_argnames)

    def sharded(state: TrainState, *args: Any, **static: Any) -> tuple[TrainState, Metrics]:
        after, metrics = step(state, *args, **static)
        after = jax.lax.with_sharding_constraint(after, optimizer_in_shards(after, shards))
        return after, jax.lax.with_sharding_constraint(metrics, jax.tree.map(lambda _: whole, metrics))

    return jax.jit(sharded, donate_argnums=0, static_argnames=static_argnames)
