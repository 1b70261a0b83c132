"""The environment for virtual devices: enough threads, never fewer than the user gave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.devices import virtual_device_environment
from stratagem.devices.threads import pool_size, requested_devices, threads_needed
from stratagem.errors import ConfigurationError

NUMBERS = st.none() | st.integers(min_value=0, max_value=5000).map(str) | st.just("many")


@given(st.integers(min_value=2, max_value=300), NUMBERS, NUMBERS, st.integers(min_value=1, max_value=512))
def test_pool_is_large_enough_and_never_lowered(
    count: int, pjrt: str | None, plain: str | None, cores: int
) -> None:
    environ = {name: value for name, value in (("PJRT_NPROC", pjrt), ("NPROC", plain)) if value is not None}
    added = virtual_device_environment(count, environ, cores)
    assert added["JAX_NUM_CPU_DEVICES"] == str(count)
    assert pool_size({**environ, **added}, cores) >= max(2 * threads_needed(count), pool_size(environ, cores))
    assert virtual_device_environment(count, {**environ, **added}, cores) == {
        "JAX_NUM_CPU_DEVICES": str(count)
    }


def test_one_device_needs_no_more_threads() -> None:
    assert virtual_device_environment(1, {}, cores=1) == {"JAX_NUM_CPU_DEVICES": "1"}


def test_first_variable_that_holds_a_number_counts() -> None:
    assert pool_size({"PJRT_NPROC": "4", "NPROC": "64"}) == 4
    assert pool_size({"PJRT_NPROC": "x", "NPROC": "64"}) == 64
    assert pool_size({"NPROC": ""}, cores=7) == 7


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 1),
        ({"JAX_NUM_CPU_DEVICES": "4"}, 4),
        ({"JAX_NUM_CPU_DEVICES": "-1"}, 1),
        ({"XLA_FLAGS": "--a=1 --xla_force_host_platform_device_count=8"}, 8),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_NUM_CPU_DEVICES": "2"}, 2),
    ],
)
def test_devices_that_the_user_asked_for(environ: dict[str, str], count: int) -> None:
    assert requested_devices(environ) == count


@pytest.mark.parametrize("count", [0, -1, "2", True, 2.0, None])
def test_count_is_checked(count: object) -> None:
    with pytest.raises(ConfigurationError, match="whole number of at least 1"):
        virtual_device_environment(count, {})  # type: ignore[arg-type]
