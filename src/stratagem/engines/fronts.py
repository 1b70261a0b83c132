"""The fronts that are installed: what lets models of another library train under a strategy.

Each is an entry point of the group `stratagem.fronts`, named after the library's module; nothing is loaded for a
library that the process has not imported. A strategy knows none of them.
"""

import sys
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stratagem.strategies.base import Strategy


GROUP = "stratagem.fronts"


class Front(Protocol):
    """Makes the models of one library trainable under strategies."""

    def scope(self, strategy: "Strategy") -> AbstractContextManager[object]:
        """Return a block in which every model that is made is adopted."""
        ...

    def adopt(self, strategy: "Strategy", model: Any) -> bool:
        """Have a model train under a strategy; return `False` if it is not of this library."""
        ...


def fronts_in_use() -> list[Front]:
    """Return the fronts of the libraries that this process has imported."""
    return [_load(name) for name in _names() if name in sys.modules]


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in entry_points(group=GROUP)))


@cache
def _load(name: str) -> Front:
    (entry,) = entry_points(group=GROUP, name=name)
    front: Front = entry.load()
    return front
