"""device(): nesting, merging, threads, tasks of an event loop."""

import asyncio
import contextvars
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.devices import DeviceSpec, current_device, device
from stratagem.errors import ConfigurationError, DeviceNotFoundError, DeviceSpecError


def test_outside_of_all_blocks_nothing_is_said() -> None:
    assert current_device() == current_device(np.zeros(3)) == DeviceSpec()


def test_inner_fields_win() -> None:
    with device("/job:ps/cpu:0") as outer:
        assert outer == current_device() == DeviceSpec.from_string("/job:ps/cpu:0")
        with device(DeviceSpec(task=1)) as inner:
            assert inner == current_device() == DeviceSpec.from_string("/job:ps/task:1/cpu:0")
        with device("/job:worker/gpu:3"):
            assert current_device().to_string() == "/job:worker/device:GPU:3"
        assert current_device() == outer
    assert current_device() == DeviceSpec()


def test_none_clears() -> None:
    with device("/job:ps/task:1"), device(None):
        assert current_device() == DeviceSpec()
        with device("/job:worker"):
            assert current_device() == DeviceSpec(job="worker")


def test_local_devices_become_the_default_of_jax() -> None:
    cpu = jax.local_devices(backend="cpu")[0]
    with device("/cpu:0"):
        assert jax.config.jax_default_device == cpu  # type: ignore[attr-defined]
        assert jnp.zeros(3).devices() == {cpu}
        with device(None):
            assert jax.config.jax_default_device is None  # type: ignore[attr-defined]
        with device("/job:ps/task:0"):  # of another task: no business of the local JAX
            assert jax.config.jax_default_device == cpu  # type: ignore[attr-defined]
    assert jax.config.jax_default_device is None  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["/job:ps/gpu:99", "/task:3/gpu:99", "", "/job:localhost"])
def test_other_tasks_and_mere_jobs_leave_jax_alone(target: str) -> None:
    with device(target):
        assert jax.config.jax_default_device is None  # type: ignore[attr-defined]


def test_missing_device_raises_on_entry_and_leaves_nothing_behind() -> None:
    scope = device("/gpu:99")
    with device("/job:localhost"):
        with pytest.raises(DeviceNotFoundError), scope:
            pass
        assert current_device() == DeviceSpec(job="localhost")
    assert jax.config.jax_default_device is None  # type: ignore[attr-defined]


def test_what_is_no_device_is_refused_at_once() -> None:
    with pytest.raises(DeviceSpecError, match="gpu0"):
        device("gpu0")
    with pytest.raises(DeviceSpecError, match=r"device\(\) got 3; it takes a device string"):
        device(3)  # type: ignore[arg-type]


def test_blocks_are_left_when_the_code_in_them_fails() -> None:
    with pytest.raises(ZeroDivisionError), device("/job:ps"), device("/cpu:0"):
        raise ZeroDivisionError
    assert current_device() == DeviceSpec()


def test_may_be_used_again_and_inside_itself() -> None:
    ps, cpu = device("/job:ps"), device("/cpu:0")
    for _ in range(2):
        with ps, cpu, ps, cpu:
            assert current_device().to_string() == "/job:ps/device:CPU:0"
        with cpu, cpu:
            assert jax.config.jax_default_device is not None  # type: ignore[attr-defined]
        assert jax.config.jax_default_device is None  # type: ignore[attr-defined]
    assert current_device() == DeviceSpec()


def test_choosers_are_asked_about_variables() -> None:
    def by_rank(variable: np.ndarray) -> str | None:
        return f"/job:ps/task:{variable.ndim}" if variable.ndim else None

    with device("/job:local_job/cpu:0"), device(by_rank):
        assert current_device().to_string() == "/job:local_job/device:CPU:0"
        assert current_device(np.zeros((2, 2))).to_string() == "/job:ps/task:2/device:CPU:0"
        assert current_device(np.zeros(())).to_string() == "/job:local_job/device:CPU:0"
        with device("/task:7"):
            assert current_device(np.zeros((2, 2))).task == 7
        with device(None):
            assert current_device(np.zeros((2, 2))) == DeviceSpec()


@pytest.mark.parametrize("answer", [3, "gpu0"])
def test_wrong_answers_of_choosers(answer: object) -> None:
    with device(lambda variable: answer), pytest.raises(DeviceSpecError, match="in a device block gave"):  # type: ignore[arg-type]
        current_device(np.zeros(3))


def test_threads_have_blocks_of_their_own() -> None:
    shared = device("/job:ps")
    all_inside = threading.Barrier(8, timeout=60)
    seen: dict[int, DeviceSpec] = {}

    def work(number: int) -> None:
        assert current_device() == DeviceSpec()
        with shared, device(DeviceSpec(task=number)):
            all_inside.wait()
            seen[number] = current_device()
            all_inside.wait()
        assert current_device() == DeviceSpec()

    with device("/job:worker"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert current_device() == DeviceSpec(job="worker")
    assert seen == {number: DeviceSpec(job="ps", task=number) for number in range(8)}


def test_tasks_of_an_event_loop_have_blocks_of_their_own() -> None:
    async def first(entered: asyncio.Event, may_leave: asyncio.Event) -> None:
        with device("/cpu:0"), device("/job:ps"):
            entered.set()
            await may_leave.wait()
            assert current_device().to_string() == "/job:ps/device:CPU:0"

    async def second(
        other_entered: asyncio.Event, other_may_leave: asyncio.Event, other: list[asyncio.Task[None]]
    ) -> None:
        await other_entered.wait()
        assert current_device() == DeviceSpec(job="outer")
        with device(None), device("/cpu:0"):
            other_may_leave.set()
            await other[0]  # it leaves its blocks while these are open
            assert current_device().to_string() == "/device:CPU:0"
            assert jax.config.jax_default_device is not None  # type: ignore[attr-defined]

    async def both() -> None:
        entered, may_leave = asyncio.Event(), asyncio.Event()
        with device("/job:outer"):
            with device(None):
                task = asyncio.create_task(first(entered, may_leave))
            await second(entered, may_leave, [task])

    asyncio.run(both())
    assert jax.config.jax_default_device is None  # type: ignore[attr-defined]


def test_blocks_left_elsewhere_are_told() -> None:
    scope, other = device("/job:ps"), device("/job:worker")
    with pytest.raises(ConfigurationError, match="in another order than it was entered"):
        scope.__exit__(None, None, None)
    with other:
        with pytest.raises(ConfigurationError, match="in another order"):
            scope.__exit__(None, None, None)
        assert current_device() == DeviceSpec(job="worker")

    local, errors = device("/cpu:0"), []

    def leave() -> None:
        try:
            local.__exit__(None, None, None)
        except ConfigurationError as error:
            errors.append(error)

    with local:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(leave,))
        thread.start()
        thread.join(timeout=60)
    assert len(errors) == 1
