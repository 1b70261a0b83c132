"""A closure: a function scheduled with its arguments, and the value that it will return."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from stratagem.classic.coordinator.datasets import PerWorkerDataset
from stratagem.errors import DeadlineExceeded, StrategyError
from stratagem.runtime import RemoteFunction
from stratagem.runtime.remote_function import is_leaf


class RemoteValue:
    """The result of one closure, which may not be there yet. `ClusterCoordinator.schedule` returns it.

    Example:
        >>> loss = coordinator.schedule(step, args=(w, batch))
        >>> loss.fetch()
    """

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def is_there(self) -> bool:
        """Return whether the closure has ended, so that `fetch` does not wait."""
        return self._has_ended.is_set()

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the closure; return its result as NumPy arrays, or raise its error.

        Args:
            timeout: Seconds to wait. By default, wait for ever.

        Raises:
            ClosureCancelled: Another closure failed, or the coordinator was closed, while this one was queued.
            DeadlineExceeded: The closure has not ended in time.
        """
        if not self._has_ended.wait(timeout):
            raise DeadlineExceeded(
                f"the closure has not ended within {timeout:g} s: wait longer, or see what the workers are doing "
                "(stratagem status)"
            )
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """Do the same as `fetch`, under TensorFlow's name for it."""
        return self.fetch(timeout)

    def settle(self, value: Any) -> None:
        """Set the value. Called by the coordinator."""
        self._value = value
        self._has_ended.set()

    def fail(self, error: Exception) -> None:
        """Set the error, so that there will be no value. Called by the coordinator."""
        self._error = error
        self._has_ended.set()


@dataclass(frozen=True)
class Closure:
    """A function with its arguments, and the value that its result goes to."""

    function: RemoteFunction
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: RemoteValue = field(default_factory=RemoteValue)


def copy_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy the arguments that the caller may change while the closure is queued.

    Raises:
        StrategyError: These are not arguments, or one of them cannot be sent to a worker.
    """
    if not isinstance(args, tuple | list):
        raise StrategyError(
            f"args is a single {type(args).__name__}; give a tuple or list of all arguments, as in "
            "schedule(fn, args=(x,))"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise StrategyError(
            f"kwargs is a single {type(kwargs).__name__}; give a dictionary of arguments by name"
        )
    copies: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(
        _copy_argument, (tuple(args), dict(kwargs or {})), is_leaf=is_leaf
    )
    return copies


def _copy_argument(leaf: Any) -> Any:
    if isinstance(leaf, PerWorkerDataset):
        raise StrategyError(
            f"the dataset of {leaf.function} is an argument; give an iterator over it, iter(dataset), created once: each "
            "closure then gets its worker's next batch"
        )
    if isinstance(leaf, RemoteValue):
        raise StrategyError(
            "a RemoteValue is an argument, but closures do not wait for one another; give its value, "
            "coordinator.fetch(value)"
        )
    # The caller may reuse an array's memory for its next batch.
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
