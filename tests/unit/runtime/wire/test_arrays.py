"""Every dtype of JAX has a name on the wire, and arrays come out as they went in."""

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import ProtocolError
from stratagem.runtime.wire.arrays import (
    ALIGNMENT,
    dtype_names,
    dtype_of,
    empty_aligned,
    name_of,
    raw_bytes,
    sendable,
)

JAX_NAMES = [
    name
    for name in dir(jnp)
    if name.startswith(("int", "uint", "float", "bfloat", "complex", "bool"))
    and any(character.isdigit() for character in name)
    and not name.startswith("intersect")
]


@pytest.mark.parametrize("name", [*JAX_NAMES, "bool"])
def test_every_dtype_of_jax_has_a_name(name: str) -> None:
    dtype = np.dtype(getattr(jnp, name).dtype if hasattr(getattr(jnp, name), "dtype") else name)
    assert dtype_of(name_of(dtype)) == dtype


def test_names_and_dtypes_are_one_to_one() -> None:
    assert [name_of(dtype_of(name)) for name in dtype_names()] == dtype_names()


@pytest.mark.parametrize(
    "name", ["object", "O", "str", "datetime64[s]", "float128", "V8", "<f4", "", 7, None]
)
def test_nothing_else_has_one(name: object) -> None:
    with pytest.raises(ProtocolError, match="unknown dtype"):
        dtype_of(name)


def test_arrays_that_cannot_be_sent_are_refused() -> None:
    for array in (np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", "i4")])):
        with pytest.raises(ProtocolError, match="cannot be sent"):
            name_of(sendable(array).dtype)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7), (1000, 33)])
@pytest.mark.parametrize("name", dtype_names())
def test_received_arrays_are_aligned(name: str, shape: tuple[int, ...]) -> None:
    dtype = dtype_of(name)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    array = empty_aligned(dtype, shape, nbytes)
    assert (array.shape, array.dtype, array.nbytes) == (shape, dtype, nbytes)
    assert array.ctypes.data % ALIGNMENT == 0 or nbytes == 0
    assert array.flags.writeable and array.flags.c_contiguous
    assert raw_bytes(array).shape == (nbytes,)


def test_what_goes_out_is_contiguous_and_native() -> None:
    whole = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert sendable(whole) is whole
    turned = sendable(whole.T)
    assert turned.flags.c_contiguous and np.array_equal(turned, whole.T)
    swapped = sendable(whole.astype(">i4"))
    assert swapped.dtype.isnative and np.array_equal(swapped, whole)
    assert sendable(np.float64(2.5)).shape == ()
    assert sendable(3).shape == ()
