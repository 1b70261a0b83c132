"""How many bytes a variable takes, from its shape and dtype alone. No NumPy: names and item sizes suffice."""

import math
import re
from collections.abc import Iterable
from typing import Any, Protocol

from stratagem.devices.checks import whole_number
from stratagem.errors import ConfigurationError


class Sized(Protocol):
    """Anything with a shape and a dtype: an array, a Keras variable, a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> Any:
        """The length of each axis."""
        ...

    @property
    def dtype(self) -> Any:
        """A NumPy, JAX or ml_dtypes dtype, or its name."""
        ...


_BITS = re.compile(r"(?:u?int|float|bfloat|complex)(\d+)(?:_e\d\w*)?")
_CODE = re.compile(r"[<>=|]?[fiuc](\d+)")
_BOOL = frozenset({"bool", "bool_", "?", "|b1", "b1"})


def is_sized(value: object) -> bool:
    """Whether `value` has a shape and a dtype, that is, can be a variable."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def byte_size(variable: Sized) -> int:
    """The bytes that a variable takes.

    Raises:
        ConfigurationError: if it has no shape or dtype, or these are not fully known.

    Example:
        >>> import numpy
        >>> byte_size(numpy.zeros((784, 500), "float32"))
        1568000
    """
    if not is_sized(variable):
        raise ConfigurationError(
            f"{variable!r} has no size; a variable needs .shape and .dtype, as an array or a "
            "jax.ShapeDtypeStruct has them"
        )
    return math.prod(dimensions(variable.shape)) * item_size(variable.dtype)


def dimensions(shape: object) -> tuple[int, ...]:
    """A shape as a tuple of `int`.

    Raises:
        ConfigurationError: if it is not a sequence of whole numbers from 0 up.
    """
    lengths = [whole_number(length) for length in shape] if isinstance(shape, Iterable) else [None]
    known = tuple(length for length in lengths if length is not None and length >= 0)
    if len(known) != len(lengths):
        raise ConfigurationError(
            f"the shape {shape!r} is not fully known; it has to be a sequence of whole numbers, such as (784, 500)"
        )
    return known


def item_size(dtype: object) -> int:
    """The bytes of one element.

    Raises:
        ConfigurationError: if `dtype` is not a dtype of fixed size.

    Example:
        >>> item_size("bfloat16")
        2
    """
    size = whole_number(getattr(dtype, "itemsize", None))
    if size:
        return size
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", getattr(dtype, "__name__", ""))
    if name in _BOOL:
        return 1
    if match := _BITS.fullmatch(str(name)):
        return max(1, int(match[1]) // 8)
    if match := _CODE.fullmatch(str(name)):
        return int(match[1])
    raise ConfigurationError(
        f"the dtype {dtype!r} has no known size; give a NumPy or JAX dtype, or a name such as 'float32', "
        "'bfloat16', 'int8' or 'bool'"
    )
