"""Packages whose names are loaded on first use, so that importing them costs next to nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names live in modules that are not imported yet.

    Args:
        package: The package's `__name__`.
        homes: The full name of the module that defines each name; for a module, its own full name.

    Example:
        >>> load, names = lazily("stratagem", {"ClusterSpec": "stratagem.cluster"})
        >>> load("ClusterSpec").__name__
        'ClusterSpec'
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has: {', '.join(sorted(homes))}"
            )
        module = import_module(homes[name])
        value = module if homes[name].endswith(f".{name}") else getattr(module, name)
        setattr(import_module(package), name, value)  # from now on Python finds it without calling this
        return value

    return load, lambda: sorted(homes)
