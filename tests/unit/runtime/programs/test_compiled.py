"""Calls of compiled programs: what they accept, what they donate, and whose memory is whose."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import ProgramRefused, RemoteCallError
from stratagem.runtime.programs import ProgramCache, export_program
from unit.runtime.programs.crafting import FOUR, artifact, function

SIZE = 100_000


def aligned(value: float, shape: Any = SIZE) -> Any:
    """A NumPy array that XLA takes as it is: it starts at a multiple of 64 bytes."""
    count = int(np.prod(shape))
    raw = np.empty(count * 4 + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    array = raw[offset : offset + count * 4].view(np.float32).reshape(shape)
    array[...] = value
    return array


def address(array: Any) -> int:
    return int(array.unsafe_buffer_pointer())


ADD = export_program(lambda x, y: x + y, aligned(0), aligned(0))


def test_arguments_are_checked(cache: ProgramCache) -> None:
    add = cache.load(ADD.artifact)
    with pytest.raises(ProgramRefused, match="takes 2 arrays and is called with 1"):
        add([aligned(1)])
    with pytest.raises(
        ProgramRefused, match=r"takes float32\[100000\] as input 1 and is called with float32\[3\]"
    ):
        add([aligned(1), aligned(1, 3)])
    with pytest.raises(ProgramRefused, match=r"as input 0 and is called with float64\[100000\]"):
        add([np.zeros(SIZE), aligned(1)])
    assert add.calls == 0


def test_donation_donates(cache: ProgramCache) -> None:
    add = cache.load(ADD.artifact, donate=[0])
    assert add.donated == (0,)
    x, y = jnp.ones(SIZE), jnp.ones(SIZE)
    before = address(x)
    (total,) = add([x, y], wait=True)
    assert x.is_deleted()
    assert not y.is_deleted()
    assert address(total) == before
    np.testing.assert_array_equal(total, np.full(SIZE, 2))


def test_without_donation_inputs_stay(cache: ProgramCache) -> None:
    add = cache.load(ADD.artifact)
    x, y = jnp.ones(SIZE), jnp.ones(SIZE)
    add([x, y], wait=True)
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, np.ones(SIZE))


def test_donating_what_fits_no_result_is_let_be(cache: ProgramCache) -> None:
    program = export_program(lambda x, y: (x + y[0], y[:3]), aligned(0), aligned(0))
    assert cache.load(program.artifact, donate=[0, 1]).donated == (0,)
    with pytest.raises(ProgramRefused, match=r"cannot donate inputs \[7\]: the program has 2 inputs"):
        cache.load(program.artifact, donate=[7])


def test_results_share_no_memory_with_numpy_inputs(cache: ProgramCache) -> None:
    program = export_program(lambda x, y: (x, y, x + y), aligned(0), aligned(0))
    for donate in ((), (0, 1)):
        x, y = aligned(1), aligned(2)
        results = cache.load(program.artifact, donate=donate)([x, y], wait=True)
        assert not {address(result) for result in results} & {x.ctypes.data, y.ctypes.data}
        x[:] = y[:] = 9
        assert [float(result[0]) for result in results] == [1, 2, 3]


def test_results_share_no_memory_with_arrays_that_were_not_donated(cache: ProgramCache) -> None:
    program = export_program(lambda x: x, aligned(0))
    x = jnp.ones(SIZE)
    (same,) = cache.load(program.artifact)([x], wait=True)
    assert address(same) != address(x)


def test_donated_arrays_that_numpy_sees_are_copied(cache: ProgramCache) -> None:
    add = cache.load(ADD.artifact, donate=[0])
    memory = aligned(1)
    borrowed = jax.device_put(memory, jax.devices()[0])
    assert address(borrowed) == memory.ctypes.data
    add([borrowed, jnp.ones(SIZE)], wait=True)
    assert memory[0] == 1

    (own,) = cache.load(ADD.artifact)([aligned(1), aligned(1)], wait=True)
    view = np.asarray(own)
    (total,) = add([own, jnp.ones(SIZE)], wait=True)
    assert view[0] == 2
    assert total[0] == 3


def test_waiting_means_that_inputs_are_free_again(cache: ProgramCache) -> None:
    shape = (800, 800)
    program = export_program(lambda x: x @ x @ x @ x, aligned(0, shape))
    multiply = cache.load(program.artifact)
    x = aligned(1, shape)
    (result,) = multiply([x], wait=True)
    x[:] = 0
    assert result[0, 0] == 800.0**3


def test_a_program_without_inputs(cache: ProgramCache) -> None:
    program = export_program(lambda: jnp.arange(3))
    (result,) = cache.load(program.artifact)([])
    np.testing.assert_array_equal(result, np.arange(3))


def test_a_kernel_that_fails_while_it_runs(cache: ProgramCache) -> None:
    body = """
        %0:3 = stablehlo.custom_call @lapack_ssyevd_ffi(%a) {api_version = 4 : i32, backend_config = {uplo = 76 : ui8}}
            : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4xf32>, tensor<i32>)
        return %0#1 : tensor<4xf32>"""
    square = np.eye(4, dtype=np.float32)
    program = cache.load(artifact(function(body, argument="tensor<4x4xf32>"), [square], [FOUR]))
    with pytest.raises(RemoteCallError, match=r"failed while it ran: .*Wrong number of attributes"):
        program([square], wait=True)
    assert program.calls == 0
