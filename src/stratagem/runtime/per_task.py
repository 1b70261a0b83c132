"""Arguments of which each task has its own: the next batch of its data, for example. They never pass the client."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from stratagem.runtime.wire import Fields, Response

TaskCall: TypeAlias = Callable[[str, Fields], Response]
"""Calls a task: the name of the call, and plain values."""
Supplier: TypeAlias = Callable[[list[list[Any]]], list[Any] | None]
"""Gives the values for all references of its kind in a call, on their task; `None` if it has no such values, or others
by now: nothing is used up then, and the client asks anew what there is."""


@dataclass(frozen=True)
class TaskValue:
    """An array that a task has, as a client describes it to that task.

    Attributes:
        reference: What the task's supplier finds it by: first the kind of supplier, then plain values.
        shape: The shape of the array.
        dtype: The dtype of the array, by name.
    """

    reference: tuple[object, ...]
    shape: tuple[int, ...]
    dtype: str


class PerTask(ABC):
    """An argument of a remote function that stands for something of the task where it runs."""

    @abstractmethod
    def on(self, call: TaskCall, task: str, *, anew: bool) -> Any:
        """What it is on this task: a tree of `TaskValue`.

        Args:
            call: Calls the task.
            task: The task's name.
            anew: Whether what was known of it did not hold.
        """
