"""The modules of the user's that a server may import: it runs no other Python of a client's choice.

Whoever starts the server names them (`--allow-import`).
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stratagem.errors import StratagemError


@dataclass(frozen=True)
class AllowedImports:
    """The modules of the user's that a server may import.

    Attributes:
        task: The server's task, for messages.
        modules: Their names.
    """

    task: str
    modules: tuple[str, ...] = ()

    def find(self, reference: str, purpose: str, launching: str, error: type[StratagemError]) -> Any:
        """Return the object that `module:name` refers to, or `None` if that very module does not define it.

        Args:
            reference: Names the object.
            purpose: What it is for, for messages.
            launching: How `stratagem run` starts such a server, for messages.
            error: The kind of error to raise.

        Raises:
            StratagemError: The module is not allowed, or cannot be imported.
        """
        module, _, name = reference.partition(":")
        if module not in self.modules:
            named = ", ".join(self.modules) or "none"
            raise error(
                f"{self.task} may not import {module!r} for {purpose}; it was started with: {named}. Start it with "
                f"`stratagem serve --allow-import {module}` (or `{launching} --allow-import {module}`)"
            )
        try:
            value = getattr(import_module(module), name, None)
        except ImportError as problem:
            raise error(
                f"{self.task} cannot import {module!r}: {problem}. Is it installed there, or on PYTHONPATH?"
            ) from problem
        return value if getattr(value, "__module__", None) == module else None
