"""The variables of one task: named arrays on its devices, read and replaced whole.

A value is never changed in place while others may see it. A thread that replaces a value holds the variable's lock, and may
give the value's memory away. A thread that only reads takes a view under that lock (`StoredVariable.view`), which XLA
respects: it does not reuse memory that NumPy still sees. On CPU a value that came from outside stays a NumPy array, which
programs read without a copy.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.errors import LimitExceeded, VariableMismatch, VariableNotFound
from stratagem.runtime.host_memory import Buffers
from stratagem.runtime.wire import Fields

_OVERHEAD = 1024
"""Bytes that a variable counts for beside its value, so that even the number of empty ones is bounded."""
Value: TypeAlias = np.ndarray[Any, np.dtype[Any]] | jax.Array


@dataclass
class StoredVariable:
    """A value and where it lives.

    Attributes:
        value: The present value: a JAX array on its device or, on CPU, an array that nobody writes to.
        place: Its device.
        device: The device's full name.
        holds_bytes: Whether the value stands for a byte string.
        lock: Held by a thread that reads the value in order to replace it.
    """

    name: str
    value: Value
    place: jax.Device
    device: str
    holds_bytes: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    buffers: Buffers = field(default_factory=Buffers)

    def check(self, shape: tuple[int, ...], dtype: Any) -> None:
        """Raise unless a value of this shape and dtype may take the place of the present one."""
        if shape != self.value.shape or dtype != self.value.dtype:
            raise VariableMismatch(
                f"variable {self.name!r} is {self.value.dtype}{list(self.value.shape)}, the value for it is "
                f"{dtype}{list(shape)}: give one of the same shape and dtype, or delete the variable first"
            )

    def view(self) -> Value:
        """Return the present value, which may be read for any length of time, whatever is assigned meanwhile."""
        with self.lock:
            return self.view_locked()

    def view_locked(self) -> Value:
        """Return the same as `view`, for a caller that holds the lock."""
        if self.place.platform == "cpu":
            return np.asarray(self.value)
        return jnp.array(self.value, copy=True)  # beside the one that an update may give away

    def take(self, value: Value) -> None:
        """Replace the value, on the same device; the caller holds the lock.

        A NumPy array is kept itself if it is writable; otherwise it is a view of others' memory, and copied.
        """
        self.check(value.shape, value.dtype)
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            value = self.buffers.copy(value)
        if (isinstance(value, np.ndarray) and self.place.platform == "cpu") or (
            isinstance(value, jax.Array) and value.devices() == {self.place}
        ):
            self.value = value
        else:
            with jax.enable_x64(True):  # else JAX would halve 64-bit values
                self.value = jax.device_put(value, self.place)

    def describe(self) -> Fields:
        """Return what a client needs to know of it."""
        return {
            "name": self.name,
            "shape": list(self.value.shape),
            "dtype": str(self.value.dtype),
            "bytes": self.value.nbytes,
            "device": self.device,
            "holds_bytes": self.holds_bytes,
        }


class VariableStore:
    """All variables of one task, up to a number of bytes in total.

    Example:
        >>> store = VariableStore(limit_bytes=1 << 20)
        >>> store.put("w", np.ones(3, np.float32), jax.devices()[0], "/job:ps/task:0/device:CPU:0")
        >>> store.read("w").shape
        (3,)
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._variables: dict[str, StoredVariable] = {}
        self._lock = threading.Lock()

    def put(
        self,
        name: str,
        value: np.ndarray[Any, Any],
        device: jax.Device,
        device_name: str,
        holds_bytes: bool = False,
    ) -> None:
        """Create a variable, or give an existing one of the same kind a new initial value, as `StoredVariable.take` does."""
        if holds_bytes and (value.dtype != np.uint8 or value.ndim != 1):
            raise VariableMismatch(
                f"variable {name!r} holds bytes, the value for it is {value.dtype}{list(value.shape)}"
            )
        with self._lock:
            known = self._variables.get(name)
            if known is not None and not (holds_bytes and known.holds_bytes):  # strings may differ in length
                known.check(value.shape, value.dtype)
            others = sum(
                _cost(variable.value) for variable in self._variables.values() if variable is not known
            )
            if others + _cost(value) > self._limit:
                raise LimitExceeded(
                    f"variable {name!r} of {value.nbytes} bytes: this task holds {others} of at most {self._limit} "
                    "bytes in other variables; delete some, or spread them over more tasks"
                )
            if known is None:
                known = self._variables[name] = StoredVariable(name, value, device, device_name, holds_bytes)
        with known.lock:  # after an update that is under way, not beneath it
            known.value, known.place, known.device, known.holds_bytes = (
                value,
                device,
                device_name,
                holds_bytes,
            )
            known.take(value)

    def __getitem__(self, name: str) -> StoredVariable:
        try:
            return self._variables[name]
        except KeyError:
            names = sorted(self._variables)
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise VariableNotFound(
                f"there is no variable {name!r} here; there is {shown or 'none at all'}"
            ) from None

    def read(self, name: str) -> Value:
        """Return the present value, which may be read for any length of time."""
        return self[name].view()

    def assign(self, name: str, value: Value) -> None:
        """Replace the value, as `StoredVariable.take` does."""
        variable = self[name]
        if variable.holds_bytes:  # a string of another length counts differently
            self.put(name, np.asarray(value), variable.place, variable.device, holds_bytes=True)
            return
        with variable.lock:
            variable.take(value)

    def add(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Add to the value; no addition is lost, however many come at the same time."""
        variable = self[name]
        variable.check(value.shape, value.dtype)
        with variable.lock, jax.enable_x64(True):
            # The caller's array may be shared memory, which is good only until the caller has its answer.
            variable.take(jax.block_until_ready(_add(variable.value, value)))

    @contextmanager
    def lock(self, names: Iterable[str]) -> Iterator[None]:
        """Keep other threads from replacing these values; lock in a fixed order, so that two such never block each other."""
        with ExitStack() as stack:
            for name in sorted(set(names)):
                stack.enter_context(self[name].lock)
            yield

    def delete(self, name: str) -> None:
        """Delete the variable; its memory is freed when the last reader has let go of it."""
        self[name]
        with self._lock:
            self._variables.pop(name, None)

    def describe(self) -> list[Fields]:
        """Return the descriptions of all variables, ordered by name."""
        return [variable.describe() for _, variable in sorted(self._variables.items())]


def _cost(value: Value) -> int:
    return value.nbytes + _OVERHEAD


_add: Callable[[Value, Value], jax.Array] = jax.jit(lambda old, value: old + value, donate_argnums=0)
