"""JAX without any strategy: the loops that a user would write, with a jitted step that donates its state."""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.racing.jax_model import step_by_hand
from benchmarks.racing.work import LEARNING_RATE
from benchmarks.strategies.task import Run, Task


def one_device(task: Task) -> Run:
    return _loop(jax.device_put(task.work.layers()), task.work.batches(), jax.device_put)


def one_device_unplaced(task: Task) -> Run:
    """The jitted step takes the NumPy arrays as they are."""
    return _loop(jax.device_put(task.work.layers()), task.work.batches(), lambda batch: batch)


def mesh(task: Task) -> Run:
    """Batches cut over the devices of this process; XLA sums the gradients."""
    replicated, cut = _shardings()
    params = jax.device_put(task.work.layers(), replicated)
    return _loop(params, task.work.batches(), partial(jax.device_put, device=cut))


def two_processes(task: Task) -> Run:
    """The same over `jax.distributed`, each process with its own rows."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(task.addresses[0], len(task.addresses), task.index)
    replicated, cut = _shardings()
    params = jax.device_put(task.work.layers(), replicated)
    place = partial(jax.make_array_from_process_local_data, cut)
    return _loop(
        params, task.work.share(task.index, len(task.addresses)), lambda batch: jax.tree.map(place, batch)
    )


def _shardings() -> tuple[NamedSharding, NamedSharding]:
    devices = Mesh(jax.devices(), ("data",))
    return NamedSharding(devices, PartitionSpec()), NamedSharding(devices, PartitionSpec("data"))


def _loop(params: Any, batches: Iterable[Any], place: Callable[[Any], Any]) -> Run:
    optimizer = optax.sgd(LEARNING_RATE)
    opt_state = optimizer.init(params)
    feed = itertools.cycle(batches)
    step = step_by_hand(optimizer)

    def run(steps: int) -> float:
        nonlocal params, opt_state
        for batch in itertools.islice(feed, steps):
            params, opt_state, loss = step(params, opt_state, place(batch))
        jax.block_until_ready(params)
        return float(loss)

    return run
