"""A variable that lives on a task of the cluster, as a client holds it, and the form in which values travel."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from stratagem.errors import ProtocolError, VariableMismatch
from stratagem.runtime.wire import Fields, Peer, dtype_of
from stratagem.runtime.wire.arrays import Array


def to_array(value: Any) -> tuple[Array, bool]:
    """Return the value as an array, and whether it stands for a byte string, which travels as uint8.

    Numbers of 64 bits become numbers of 32, as everywhere in JAX, unless this process has enabled them.

    Example:
        >>> to_array(b"Hi")
        (array([ 72, 105], dtype=uint8), True)
    """
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(bytes(value), np.uint8), True
    if isinstance(value, str):
        raise ProtocolError(
            f"text does not travel, bytes do: give {value!r}.encode(), and .decode() what comes back"
        )
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise ProtocolError(
            f"{type(value).__name__} cannot travel: give numbers, arrays of numbers, or bytes"
        )
    canonical = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    if isinstance(value, int) and int(canonical) != value:
        raise ProtocolError(
            f"{value} does not fit into {canonical.dtype}: enable 64-bit numbers (jax_enable_x64), or scale it"
        )
    return canonical, False


def from_array(array: Array, holds_bytes: bool) -> Array | bytes:
    """Return the value that `to_array` made an array of."""
    return array.tobytes() if holds_bytes else array


@dataclass(frozen=True)
class RemoteVariable:
    """A name for a value elsewhere; the value moves only when it is read or assigned.

    Attributes:
        name: Its name on its task.
        task: The task, such as `/job:ps/task:0`.
        device: The full name of its device.
        shape: The shape of its value.
        dtype: The dtype of its value, by name.
        holds_bytes: Whether its value is a byte string.
    """

    name: str
    task: str
    device: str
    shape: tuple[int, ...]
    dtype: str
    holds_bytes: bool
    _peer: Peer = field(repr=False, compare=False)
    _timeout: float = field(repr=False, compare=False)

    @classmethod
    def from_description(cls, description: Fields, peer: Peer, timeout: float) -> "RemoteVariable":
        """Return the variable that a task has described."""
        return cls(
            name=str(description["name"]),
            task=peer.task,
            device=str(description["device"]),
            shape=tuple(description["shape"]),
            dtype=str(description["dtype"]),
            holds_bytes=bool(description["holds_bytes"]),
            _peer=peer,
            _timeout=timeout,
        )

    def read(self, into: Array | None = None) -> Any:
        """Return the value now: as a new array of this client's, as the array given, or as bytes."""
        fields = {"names": [self.name]}
        response = self._peer.call(
            "variable.read", fields, timeout=self._timeout, into=None if into is None else [into]
        )
        return from_array(response.tensors[0], self.holds_bytes)

    def assign(self, value: Any) -> None:
        """Replace the value."""
        self._send("variable.assign", value)

    def assign_add(self, value: Any) -> None:
        """Add to the value, on its task; concurrent additions are all counted."""
        self._send("variable.add", value)

    def delete(self) -> None:
        """Remove the variable from its task."""
        self._peer.call("variable.delete", {"names": [self.name]}, timeout=self._timeout)

    def _send(self, call: str, value: Any) -> None:
        array, is_bytes = to_array(value)
        if not is_bytes and not hasattr(value, "dtype"):
            array = self._cast(array)  # a Python number or list takes the variable's dtype
        self._peer.call(call, {"names": [self.name]}, [array], timeout=self._timeout)

    def _cast(self, array: Array) -> Array:
        dtype = dtype_of(self.dtype)
        cast = array.astype(dtype)
        if not (
            np.can_cast(array.dtype, dtype, "same_kind") or np.array_equal(cast.astype(array.dtype), array)
        ):
            raise VariableMismatch(
                f"variable {self.name!r} is {self.dtype}, which cannot hold {array.tolist()!r:.80}: give values that it "
                "can hold, or an array of its dtype"
            )
        return cast
