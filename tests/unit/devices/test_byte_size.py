"""byte_size: every way in which a dtype is written."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stratagem.devices import byte_size
from stratagem.errors import ConfigurationError


@dataclass
class Variable:
    shape: Any
    dtype: Any


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 4),
        ("float64", 8),
        ("bfloat16", 2),
        ("int8", 1),
        ("uint16", 2),
        ("complex64", 8),
        ("bool", 1),
        ("int4", 1),
        ("float8_e4m3fn", 1),
        ("<f4", 4),
        ("f8", 8),
        (np.dtype("float16"), 2),
        (np.float32, 4),
        (np.bool_, 1),
        (jnp.float32, 4),
        (jnp.bfloat16, 2),
        (jnp.dtype("bfloat16"), 2),
        (ml_dtypes.bfloat16, 2),
        (ml_dtypes.float8_e5m2, 1),
        (ml_dtypes.int4, 1),
    ],
)
def test_item_sizes(dtype: object, size: int) -> None:
    assert byte_size(Variable((3, 5), dtype)) == 15 * size


def test_takes_whatever_has_shape_and_dtype() -> None:
    assert byte_size(np.zeros((784, 500), np.float32)) == 1568000
    assert byte_size(jax.ShapeDtypeStruct((784, 500), jnp.bfloat16)) == 784000
    assert byte_size(Variable((), "float32")) == 4
    assert byte_size(Variable([0, 7], "float32")) == 0


@pytest.mark.parametrize("shape", [None, (None, 3), (-1,), (2.0,), 3, "ab"])
def test_unknown_shapes(shape: object) -> None:
    with pytest.raises(ConfigurationError, match="is not fully known"):
        byte_size(Variable(shape, "float32"))


@pytest.mark.parametrize("dtype", [None, "float", "string", float, object(), 3, ""])
def test_unknown_dtypes(dtype: object) -> None:
    with pytest.raises(ConfigurationError, match=r"has no known size; .*'float32'"):
        byte_size(Variable((2,), dtype))


def test_not_a_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"3 has no size; a variable needs .shape and .dtype"):
        byte_size(3)  # type: ignore[arg-type]
