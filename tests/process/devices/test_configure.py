"""configure before and after JAX has started, in processes of their own."""

from process.devices.scripts import run

SETUP = """
import stratagem.devices as sg
from stratagem.errors import ConfigurationError, DeviceNotFoundError

def refused(**arguments):
    try:
        sg.configure(**arguments)
    except ConfigurationError as error:
        return str(error)
    raise SystemExit(f"{arguments} was taken")
"""


def test_virtual_devices_and_blocks_over_them() -> None:
    run(
        SETUP
        + """
import threading
sg.configure(virtual_devices=2)
sg.configure(virtual_devices=4, visible_devices=["/cpu:*"], memory_growth=True)
sg.configure(virtual_devices=4)
names = [device.name for device in sg.list_devices()]
assert names == [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)], names
sg.configure(virtual_devices=4, visible_devices=["/cpu:*"], memory_growth=True)  # in force: harmless

import jax, jax.numpy as jnp
def place():
    (device,) = jnp.ones(3).devices()
    return device.id

assert place() == 0
with sg.device("/cpu:2"):
    assert place() == 2
    with sg.device("/cpu:3"):
        assert place() == 3 and jax.jit(lambda: jnp.ones(3))().devices() == {jax.devices()[3]}
        with sg.device(None):
            assert place() == 0
        with sg.device("/job:ps/task:0/cpu:1"):
            assert place() == 3
    with jax.default_device(jax.devices()[1]), sg.device("/job:localhost"):
        assert place() == 2  # this block says again what the outer one said
    assert place() == 2
assert place() == 0

seen, barrier = {}, threading.Barrier(4, timeout=60)
def work(index):
    with sg.device(f"/cpu:{index}"):
        barrier.wait()
        seen[index] = place()
threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert seen == {0: 0, 1: 1, 2: 2, 3: 3}, seen

try:
    sg.find_device("/cpu:4")
except DeviceNotFoundError as error:
    assert "sg.configure(virtual_devices=5)" in str(error)
"""
    )


def test_too_late() -> None:
    run(
        SETUP
        + """
import jax
jax.devices()
message = refused(virtual_devices=4)
assert "JAX was started with 1 CPU device(s)" in message, message
assert "Call sg.configure(virtual_devices=4) before the first JAX operation" in message, message
assert "came too late" in refused(visible_devices=["/gpu:0"])
assert "memory_growth=False" in refused(memory_growth=True)
assert "JAX is to have 1 CPU device(s)" in refused(visible_devices=["/cpu:1"])

# What is in force may be said again, and what may change at any time does.
sg.configure(virtual_devices=1, visible_devices=["/cpu:0"], memory_growth=False)
sg.configure(soft_placement=True)
assert sg.find_device("/gpu:3").name.endswith("CPU:0")
sg.configure(soft_placement=False)
try:
    sg.find_device("/gpu:3")
except DeviceNotFoundError as error:
    assert "it has /device:CPU:0." in str(error), error
else:
    raise SystemExit("soft placement is still on")
"""
    )


def test_visible_devices() -> None:
    run(
        SETUP
        + """
import jax
sg.configure(visible_devices=["/cpu:0"])
assert jax.config.jax_platforms == "cpu"
sg.configure(visible_devices=["/gpu:1", "/gpu:3"])
assert jax.config.jax_platforms is None
from jax._src import xla_bridge
assert xla_bridge.CUDA_VISIBLE_DEVICES.value == "1,3"
sg.configure(visible_devices=["/cpu:0"])
jax.devices()
sg.configure(visible_devices=["/cpu:0"])
assert "came too late" in refused(visible_devices=["/gpu:1"])
"""
    )


def test_memory_growth_reaches_the_gpu_plugin() -> None:
    run(
        SETUP
        + """
import jaxlib.xla_client
sg.configure(memory_growth=True)
assert jaxlib.xla_client.generate_pjrt_gpu_plugin_options()["preallocate"] is False
sg.configure(memory_growth=False)
assert jaxlib.xla_client.generate_pjrt_gpu_plugin_options()["preallocate"] is True
"""
    )


def test_soft_placement_and_the_log_of_a_block() -> None:
    run(
        SETUP
        + """
import logging
lines = []
logging.getLogger("stratagem").addHandler(handler := logging.Handler())
handler.emit = lambda record: lines.append(record.getMessage())
sg.configure(visible_devices=["/gpu:1"])
try:
    sg.find_device("/cpu:0")
except DeviceNotFoundError as error:
    assert "visible_devices has /gpu:1, and this process has /device:CPU:0: choose" in str(error), error
else:
    raise SystemExit("a GPU that is not there was taken")
sg.configure(soft_placement=True)
for _ in range(3):
    with sg.device("/gpu:1") as spec:
        assert spec.to_string() == "/device:GPU:1"
assert lines == [
    "visible_devices has /gpu:1, and this process has /device:CPU:0: that is what is used (soft placement)",
    "this process has no /device:GPU:1: /device:CPU:0 is used instead (soft placement)",
], lines
"""
    )


def test_larger_pool_of_the_user_is_kept() -> None:
    code = """
import os
import stratagem.devices as sg
sg.configure(virtual_devices=2)
print(os.environ.get("PJRT_NPROC"), os.environ.get("NPROC"))
"""
    assert run(code, PJRT_NPROC="300") == "300 None"
    assert run(code, NPROC="300") == "None 300"
    assert run(code, NPROC="3", PJRT_NPROC="300") == "300 3"


def test_platform_that_is_not_there() -> None:
    run(
        SETUP
        + """
try:
    sg.list_devices()
except DeviceNotFoundError as error:
    assert "JAX could not start its devices" in str(error) and "JAX_PLATFORMS" in str(error)
else:
    raise SystemExit("started")
""",
        JAX_PLATFORMS="tpu",
    )


def test_importing_and_configuring_start_nothing() -> None:
    run(
        """
import sys
import stratagem.devices as sg
assert "jax" not in sys.modules and "numpy" not in sys.modules
sg.configure(soft_placement=True, log_device_placement=True, memory_growth=True)
with sg.device("/job:ps/task:0"):
    assert sg.current_device().to_string() == "/job:ps/task:0"
assert "jax" not in sys.modules
sg.configure(virtual_devices=2)
from jax._src.xla_bridge import backends_are_initialized
assert not backends_are_initialized()
"""
    )
