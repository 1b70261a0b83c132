"""The variables of one task: named arrays on its devices, read and replaced whole.

A value is an immutable JAX array: a reader keeps the one it was given, whatever is assigned meanwhile. On
CPU, arrays go in and out without a copy, and XLA does not reuse the memory of one that is still being read.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from stratagem.errors import LimitExceeded, VariableMismatch, VariableNotFound
from stratagem.runtime.buffers import Buffers
from stratagem.runtime.wire import Fields


@dataclass
class Variable:
    """A value and where it lives.

    Attributes:
        lock: Held by whoever reads the value in order to replace it.
        device: The device's full name.
        holds_bytes: Whether the value stands for a byte string.
    """

    name: str
    value: jax.Array
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

    def replace(self, value: Any) -> None:
        """Give it a new value, on the device of the old one; the caller holds the lock."""
        self.check(value.shape, value.dtype)
        with jax.enable_x64(True):  # else JAX would halve 64-bit values
            self.value = jax.device_put(value, self.value.sharding)

    def describe(self) -> Fields:
        """What a client needs to know of it."""
        return {
            "name": self.name,
            "shape": list(self.value.shape),
            "dtype": str(self.value.dtype),
            "bytes": self.value.nbytes,
            "device": self.device,
            "holds_bytes": self.holds_bytes,
        }


class VariableStore:
    """All variables of one task, up to so many bytes in total.

    Example:
        >>> store = VariableStore(limit_bytes=1 << 20)
        >>> store.put("w", np.ones(3, np.float32), jax.devices()[0], "/job:ps/task:0/device:CPU:0")
        >>> store.read("w").shape
        (3,)
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._variables: dict[str, Variable] = {}
        self._lock = threading.Lock()

    def put(
        self,
        name: str,
        value: np.ndarray[Any, Any],
        device: jax.Device,
        device_name: str,
        holds_bytes: bool = False,
    ) -> None:
        """Create a variable, or give an existing one of the same kind a new initial value."""
        with self._lock:
            known = self._variables.get(name)
            if known is not None and not (holds_bytes and known.holds_bytes):  # strings may differ in length
                known.check(value.shape, value.dtype)
            others = sum(
                variable.value.nbytes for variable in self._variables.values() if variable is not known
            )
            if others + value.nbytes > self._limit:
                raise LimitExceeded(
                    f"variable {name!r} of {value.nbytes} bytes: this task holds {others} of at most {self._limit} "
                    "bytes in other variables; delete some, or spread them over more tasks"
                )
            with jax.enable_x64(True):
                array = jax.device_put(value, device)
            self._variables[name] = Variable(name, array, device_name, holds_bytes)

    def __getitem__(self, name: str) -> Variable:
        try:
            return self._variables[name]
        except KeyError:
            names = sorted(self._variables)
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise VariableNotFound(
                f"there is no variable {name!r} here; there is {shown or 'none at all'}"
            ) from None

    def read(self, name: str) -> jax.Array:
        """The present value."""
        return self[name].value

    def assign(self, name: str, value: np.ndarray[Any, Any] | jax.Array) -> None:
        """Replace the value. A NumPy array that is not writable is copied, others are taken over."""
        variable = self[name]
        if variable.holds_bytes:  # a string of another length: to be counted anew
            (device,) = variable.value.devices()
            self.put(name, np.array(value), device, variable.device, holds_bytes=True)
            return
        with variable.lock:
            if isinstance(value, np.ndarray) and not value.flags.writeable:
                variable.check(value.shape, value.dtype)
                value = variable.buffers.copy(value)
            variable.replace(value)

    def add(self, name: str, value: np.ndarray[Any, Any]) -> None:
        """Add to the value; no addition is lost, however many come at the same time."""
        variable = self[name]
        variable.check(value.shape, value.dtype)
        with variable.lock, jax.enable_x64(True):
            variable.value = _add(variable.value, value)

    @contextmanager
    def locked(self, names: Iterable[str]) -> Iterator[None]:
        """Keep all others from replacing these values; in one order, so that two such never block each other."""
        with ExitStack() as stack:
            for name in sorted(set(names)):
                stack.enter_context(self[name].lock)
            yield

    def delete(self, name: str) -> None:
        """Forget the variable; its memory is freed when the last reader has let go."""
        self[name]
        with self._lock:
            self._variables.pop(name, None)

    def describe(self) -> list[Fields]:
        """All variables, by name."""
        return [variable.describe() for _, variable in sorted(self._variables.items())]


_add: Callable[[jax.Array, Any], jax.Array] = jax.jit(lambda old, value: old + value, donate_argnums=0)
