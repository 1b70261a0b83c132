"""Engines whose variables are with this process: on every device, on one, in shards over all, or only to evaluate with."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from stratagem.cluster import ClusterConfig
from stratagem.cluster.roles import EVALUATOR
from stratagem.engines.engine import Engine, Step, forward_and_back, gradient_inputs, training_program
from stratagem.engines.local_tables import LocalRows
from stratagem.engines.meshes import optimizer_in_shards, shard_evenly
from stratagem.engines.replicas import REPLICA_AXIS, Lookahead, Replicas
from stratagem.engines.workers import Alone, Workers
from stratagem.errors import StrategyError
from stratagem.runtime.peers import task_name
from stratagem.tables.row_source import RowSource
from stratagem.tables.table import Table
from stratagem.waist import Arrays, Metrics, Trainable, TrainState


class LocalEngine(Engine):
    """The base of engines whose variables, and rows of tables, are with this process."""

    def tables(self, tables: Sequence[Table], optimizer: Any) -> RowSource:
        self.replicas.lookahead = Lookahead(1)
        return LocalRows(tables, optimizer)


class MirroredEngine(LocalEngine):
    """Variables on every device; XLA inserts the all-reduce into one compiled step.

    Args:
        replicas: The devices that compute.
        shards_state: Whether each device keeps and updates only its shard of the optimizer's state.
    """

    def __init__(self, replicas: Replicas, shards_state: bool = False) -> None:
        super().__init__(replicas)
        self._shards = replicas.mesh if shards_state else None

    def lay_out(self, state: TrainState) -> TrainState:
        shardings = self.replicas.whole if self._shards is None else optimizer_in_shards(state, self._shards)
        laid_out: TrainState = jax.device_put(state, shardings)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            grads, others, metrics = forward_and_back(trainable, state, batch, state.rng)
            return state.updated(grads, others), {**metrics, **trainable.report(others)}

        program: Step = training_program(step, self.replicas.whole, self._shards)
        return program


class CentralEngine(LocalEngine):
    """Variables in one place, which updates them; every device computes.

    Args:
        replicas: The devices that compute.
        storage: Where the variables live: on a device, in its own memory or in its host's.
    """

    def __init__(self, replicas: Replicas, storage: SingleDeviceSharding) -> None:
        super().__init__(replicas)
        self._storage = storage
        (self._device,) = storage.device_set
        self._near = SingleDeviceSharding(self._device)
        self._is_near = storage.memory_kind == self._near.memory_kind

    def lay_out(self, state: TrainState) -> TrainState:
        laid_out: TrainState = jax.device_put(state, self._storage)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        def compute(state: TrainState, batch: Any) -> tuple[Arrays, Arrays, Metrics]:
            grads, others, metrics = forward_and_back(trainable, state, batch, state.rng)
            return grads, others, {**metrics, **trainable.report(others)}

        def update(state: TrainState, grads: Arrays, others: Arrays) -> TrainState:
            # XLA computes in a device's own memory only.
            near = state if self._is_near else jax.device_put(state, self._near)
            return near.updated(grads, others)

        compiled_compute = jax.jit(compute, out_shardings=self.replicas.whole)
        compiled_update = jax.jit(update, donate_argnums=0, out_shardings=self._storage)

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            # Only what computing reads is copied to the devices.
            inputs = self._copy_to_devices(gradient_inputs(trainable, state))
            grads, others, metrics = compiled_compute(inputs, batch)
            grads, others = self.replicas.copy_on(self._device, (grads, others))
            return compiled_update(state, grads, others), metrics

        return step

    def _copy_to_devices(self, value: Any) -> Any:
        """Copy stored values to every device that computes."""
        devices, whole = self.replicas.devices, self.replicas.whole
        if not self._is_near or self._device not in devices or len(devices) == 1:
            return jax.device_put(value, whole)
        # The storing device computes on the variables themselves: only the others get copies.
        leaves, tree = jax.tree.flatten(value)
        copies = [leaves if device == self._device else jax.device_put(leaves, device) for device in devices]
        return jax.tree.unflatten(
            tree,
            [
                jax.make_array_from_single_device_arrays(leaf.shape, whole, list(column))
                for leaf, *column in zip(leaves, *copies, strict=True)
            ],
        )


_STORAGE_AXIS = "part"
"""Not the axis of batches' rows: what is sharded for storage is no replica's share."""


class SpreadEngine(LocalEngine):
    """Each variable once, in shards over the CPU devices, which all have the host's memory.

    Computing needs variables whole, and gets copies for the time of a step. Each shard of a gradient is summed, and each
    shard of a variable updated, by one device alone, so the devices share that work too. One compiled step does it all.
    """

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas)
        self._storage_mesh = Mesh(np.array(replicas.devices), (_STORAGE_AXIS,))
        self._compute_mesh = Mesh(np.array(replicas.devices), (REPLICA_AXIS,))

    def lay_out(self, state: TrainState) -> TrainState:
        laid_out: TrainState = jax.device_put(state, _in_shards(state, self._storage_mesh))
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        whole = self.replicas.whole

        def step(state: TrainState, batch: Any) -> tuple[TrainState, Metrics]:
            # Some of JAX's functions require all their arguments on the same mesh.
            shards = jax.lax.with_sharding_constraint(state, _in_shards(state, self._compute_mesh))
            copies = jax.lax.with_sharding_constraint(shards, jax.tree.map(lambda _: whole, state))
            grads, others, metrics = forward_and_back(trainable, copies, batch, copies.rng)
            after = shards.updated(grads, others)
            after = jax.lax.with_sharding_constraint(after, _in_shards(after, self._storage_mesh))
            return after, {**metrics, **trainable.report(others)}

        return jax.jit(step, donate_argnums=0)


def _in_shards(state: TrainState, mesh: Mesh) -> Any:
    """Return shardings that divide every array that divides evenly; the rest, which is small, is whole on each device."""
    return jax.tree.map(lambda leaf: shard_evenly(leaf, mesh), state)


# Evaluators.


def is_evaluator(config: ClusterConfig) -> bool:
    """Return whether this process is the task that evaluates while others train."""
    return config.job_name == EVALUATOR


def evaluator_parts(config: ClusterConfig, replicas: Replicas) -> tuple[Engine, Workers]:
    """Return the engine and the workers of a strategy on an evaluator task: this process alone, which does not train."""
    task = task_name(config.job_name, config.task_index)
    return EvaluatorEngine(replicas, task), Alone(config.cluster, is_chief=False)


class EvaluatorEngine(Engine):
    """Variables on every device of this process, to compute with; nothing updates them."""

    def __init__(self, replicas: Replicas, task: str) -> None:
        super().__init__(replicas)
        self._task = task

    def lay_out(self, state: TrainState) -> TrainState:
        laid_out: TrainState = self.replicas.replicate(state)
        return laid_out

    def build(self, trainable: Trainable) -> Step:
        """Refuse to train: the evaluator would train a model of its own.

        Raises:
            StrategyError: Always.
        """
        raise StrategyError(
            f"{self._task} does not train: it evaluates what the chief and the workers train. With an Estimator "
            "call sg.train_and_evaluate, which does each task's part; else train on other tasks only, or start the job "
            "without an evaluator"
        )
