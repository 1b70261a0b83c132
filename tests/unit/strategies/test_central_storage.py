"""Where central variables live: on the host, in memory that accelerators reach by themselves where they can."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import SingleDeviceSharding

import stratagem as sg
from stratagem.engines.local_engines import CentralEngine
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Alone
from stratagem.strategies import Strategy
from stratagem.strategies.central_storage import host_of, reaches_host

STEPS = 4


def loss_fn(params: dict[str, Any], batch: Any) -> jax.Array:
    return jnp.mean((batch @ params["w"] + params["b"] - 1) ** 2)


def train(strategy: Strategy) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    initial = {"w": random.standard_normal((3, 2)).astype(np.float32), "b": np.zeros(2, np.float32)}
    state = strategy.init(initial, optax.adam(0.1), ema_decay=0.9)
    step = strategy.train_step(loss_fn)
    for _ in range(STEPS):
        state, _ = step(state, random.standard_normal((4, 3)).astype(np.float32))
    return state, strategy.fetch(state)


@pytest.fixture
def in_host_memory() -> Strategy:
    """What the strategy is on accelerators; the CPU too has such memory, if only by name."""
    device = jax.devices("cpu")[0]
    return Strategy(
        CentralEngine(Replicas([device]), SingleDeviceSharding(device, memory_kind="pinned_host")), Alone()
    )


def test_trained_in_host_memory_like_in_any_other(in_host_memory: Strategy) -> None:
    _, expected = train(sg.OneDeviceStrategy())
    _, found = train(in_host_memory)
    assert found.step == expected.step == STEPS
    for name in ("w", "b"):
        np.testing.assert_allclose(found.params[name], expected.params[name], rtol=1e-6)
        np.testing.assert_allclose(found.ema[name], expected.ema[name], rtol=1e-6)


def test_everything_stays_in_host_memory(in_host_memory: Strategy) -> None:
    state, _ = train(in_host_memory)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)} == {"pinned_host"}


class Accelerator:
    """As much of a device as is asked for its memory."""

    platform = "cuda"

    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def addressable_memories(self) -> list[Any]:
        return [
            memory for memory in jax.devices("cpu")[0].addressable_memories() if memory.kind in self._kinds
        ]


def test_accelerators_reach_the_host_if_they_have_memory_there() -> None:
    assert reaches_host(Accelerator("device", "pinned_host"))
    assert not reaches_host(Accelerator("device"))


def test_without_accelerators_the_cpu_is_home() -> None:
    cpu = jax.devices("cpu")[0]
    assert host_of(cpu) == SingleDeviceSharding(cpu)
