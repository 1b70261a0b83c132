"""Packages whose names are loaded when first used, so that importing them costs next to nothing."""

from collections.abc import Callable, Mapping
from importlib import import_module


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live in its modules.

    Args:
        package: The package's `__name__`.
        homes: For each name the full name of the module that has it, or of itself if it is a module.

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
        setattr(import_module(package), name, value)  # the next time it is found without us
        return value

    return load, lambda: sorted(homes)
