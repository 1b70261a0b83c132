"""What every server offers beside variables and programs: whatever is installed as a service.

Upper layers, and other packages, name their services as entry points of the group `stratagem.services`. Each is
called with a server before it answers anybody, and registers handlers of its own; a server knows none of them.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "stratagem.services"


@cache
def installed_services() -> tuple[Callable[[Any], object], ...]:
    """The services that are installed, in the order of their names."""
    return tuple(entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))
