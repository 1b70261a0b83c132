"""Calls under way in threads of their own, and numbers that they will bring."""

import operator
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from stratagem.runtime.exits import DAEMON_WORK
from stratagem.runtime.fan_out import RunningCall

T = TypeVar("T")


class Begun(RunningCall[T]):
    """A call under way; its thread does not keep the process from ending.

    Args:
        call: What to call.
        *args: Its arguments.
    """

    def __init__(self, call: Callable[..., T], *args: Any) -> None:
        self._call = call
        self._args = args
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stratagem-call", daemon=True)
        self._thread.start()

    def result(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _run(self) -> None:
        with DAEMON_WORK:
            try:
                self._result = self._call(*self._args)
            except BaseException as error:  # noqa: BLE001  raised again where the result is asked for
                self._error = error
            finally:
                self._args = ()  # a batch, perhaps


class Later(NDArrayOperatorsMixin):
    """A number that a call will bring: whoever looks at it waits for it, as with arrays of JAX.

    Args:
        value: Waits for it.
    """

    def __init__(self, value: Callable[[], Any]) -> None:
        self._value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        found = np.asarray(self._value(), dtype)
        return found.copy() if copy else found

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        known = [np.asarray(each) if isinstance(each, Later) else each for each in inputs]
        return getattr(ufunc, method)(*known, **kwargs)

    def __float__(self) -> float:
        return float(self._value())

    def __int__(self) -> int:
        return int(self._value())

    def __index__(self) -> int:
        return operator.index(self._value())

    def __bool__(self) -> bool:
        return bool(self._value())

    def __format__(self, how: str) -> str:
        return format(np.asarray(self._value()).item(), how)

    def __repr__(self) -> str:
        return repr(self._value())
