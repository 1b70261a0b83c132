"""Virtual CPU devices never deadlock in collectives, by whatever way the user came by them.

Without the guard each of these stops within the first steps on a machine with few cores: XLA's pool has too
few threads (see stratagem.devices.threads). On a machine with many cores the pool of each process is made as
small as a small machine's by binding the process to two cores before JAX starts.
"""

import pytest

from drills.nursery import Nursery
from process.devices.scripts import run

SMALL_MACHINE = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
"""
TRAIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

assert len(jax.devices()) == DEVICES, jax.devices()
mesh = Mesh(np.array(jax.devices()), ("data",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

def loss(weights, inputs, targets):
    return jnp.mean((jax.nn.relu(inputs @ weights[0]) @ weights[1] - targets) ** 2)

@jax.jit
def step(weights, inputs, targets):
    gradients = jax.grad(loss)(weights, inputs, targets)
    return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients)]

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
def total(inputs):
    return jax.lax.psum(inputs.sum(), "data")

random = np.random.default_rng(0)
weights = [random.normal(size=size).astype("float32") * 0.01 for size in ((256, 200), (200, 10))]
weights = jax.device_put(weights, whole)
inputs = jax.device_put(random.normal(size=(DEVICES * 12, 256)).astype("float32"), split)
targets = jax.device_put(random.normal(size=(DEVICES * 12, 10)).astype("float32"), split)
for _ in range(500):  # without waiting for any of them
    weights = step(weights, inputs, targets)
    sums = total(inputs)
jax.block_until_ready((weights, sums))
np.testing.assert_allclose(sums, np.asarray(inputs).sum(), rtol=1e-3)
print("done")
"""
DEADLINE = 90


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_configured(nursery: Nursery, devices: int) -> None:
    code = f"""
DEVICES = {devices}
{SMALL_MACHINE}
import stratagem.devices as sg
sg.configure(virtual_devices=DEVICES)
{TRAIN}
"""
    assert run(code, timeout=DEADLINE, nursery=nursery) == "done"


@pytest.mark.parametrize(
    "variables",
    [
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        {"JAX_NUM_CPU_DEVICES": "4"},
        {"JAX_NUM_CPU_DEVICES": "4", "PJRT_NPROC": "2"},
    ],
)
def test_devices_from_the_user_s_environment(variables: dict[str, str]) -> None:
    code = f"""
DEVICES = 4
{SMALL_MACHINE}
import stratagem.devices as sg
assert len(sg.list_devices()) == DEVICES
assert sg.guard_collectives()
{TRAIN}
"""
    assert run(code, timeout=DEADLINE, nursery=None, **variables) == "done"


def test_several_threads_may_dispatch(nursery: Nursery) -> None:
    """As long as each looks at a result now and then: XLA stops where several run ahead without end."""
    code = f"""
DEVICES = 4
{SMALL_MACHINE}
import threading
import stratagem.devices as sg
sg.configure(virtual_devices=DEVICES)
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("data",))

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))
def mix(values):
    return 0.5 * values + 0.1 * jax.lax.pmean(values, "data")

def work():
    values = jax.device_put(np.ones((64, 64), "float32"), NamedSharding(mesh, PartitionSpec("data")))
    for number in range(150):
        values = mix(values)
        if number % 5 == 4:
            jax.block_until_ready(values)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
"""
    assert run(code, timeout=DEADLINE, nursery=nursery) == "done"


def test_children_started_with_the_environment_are_safe() -> None:
    from stratagem.devices import virtual_device_environment

    variables = virtual_device_environment(4, {}, cores=2)
    assert (
        run(f"DEVICES = 4\n{SMALL_MACHINE}\n{TRAIN}", timeout=DEADLINE, nursery=None, **variables) == "done"
    )


def test_unsafe_start_by_the_user_is_told() -> None:
    code = f"""
{SMALL_MACHINE}
import jax
jax.devices()
import stratagem.devices as sg
from stratagem.errors import ConfigurationError
assert not sg.guard_collectives()
try:
    sg.configure(virtual_devices=4)
except ConfigurationError as error:
    print(error)
"""
    message = run(code, JAX_NUM_CPU_DEVICES="4")
    assert "too few threads for collectives" in message
    assert "before the first JAX operation" in message
