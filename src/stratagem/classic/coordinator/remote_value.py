"""What a scheduled closure will have returned: a value that may not be there yet."""

import threading
from typing import Any

from stratagem.errors import DeadlineExceeded


class RemoteValue:
    """The result of one closure; `ClusterCoordinator.schedule` makes it.

    Example:
        >>> loss = coordinator.schedule(step, args=(w, batch))
        >>> loss.fetch()
    """

    def __init__(self) -> None:
        self._is_there = threading.Event()
        self._value: Any = None
        self._error: Exception | None = None

    def is_there(self) -> bool:
        """Whether the closure has ended: `fetch` does not wait then."""
        return self._is_there.is_set()

    def fetch(self, timeout: float | None = None) -> Any:
        """Wait for the closure, and give what it returned, as NumPy arrays; or raise what it raised.

        Args:
            timeout: Seconds to wait; for ever by default.

        Raises:
            ClosureCancelled: It was queued when another failed, or when the coordinator was closed.
            DeadlineExceeded: It has not ended in time.
        """
        if not self._is_there.wait(timeout):
            raise DeadlineExceeded(
                f"the closure has not ended within {timeout:g} s: wait longer, or see what the workers are doing "
                "(stratagem status)"
            )
        if self._error is not None:
            raise self._error
        return self._value

    def get(self, timeout: float | None = None) -> Any:
        """The same as `fetch`, under the name that TensorFlow has."""
        return self.fetch(timeout)

    def settle(self, value: Any) -> None:
        """For the coordinator: this is the value."""
        self._value = value
        self._is_there.set()

    def fail(self, error: Exception) -> None:
        """For the coordinator: there will be no value."""
        self._error = error
        self._is_there.set()
