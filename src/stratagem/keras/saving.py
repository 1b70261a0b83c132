"""How a model is saved where several workers run the script: by the chief, in one go, for all of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from stratagem.keras.arguments import named_arguments
from stratagem.strategies.base import Strategy

WRITERS = ("save", "save_weights", "export")
"""The methods of a model that write files."""
_SINGLE_FILES = (".keras", ".h5", ".hdf5")


def save(strategy: Strategy, model: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call one of these methods: on the chief, and elsewhere where the chief does not write the same."""
    write: Callable[..., Any] = getattr(type(model), name)
    files = strategy.workers.files
    named = named_arguments(name, model, args, kwargs)
    path = named.get("filepath")
    if files is None or not isinstance(path, str | os.PathLike):
        return write(model, *args, **kwargs)
    if _is_one_file(model, name, named):
        return files.save(os.fspath(path), lambda: _replace(strategy.workers.index, model, write, named))
    return files.save(os.fspath(path), lambda: write(model, **named))


def _is_one_file(model: Any, name: str, named: dict[str, Any]) -> bool:
    """Whether Keras itself writes one file and nothing else, and asks nobody before."""
    path = os.fspath(named["filepath"])
    return (
        getattr(type(model), name) is getattr(keras.Model, name)
        and path.endswith(_SINGLE_FILES)
        and "://" not in path
        and named.get("overwrite", True)
        and named.get("zipped") is not False
        and named.get("max_shard_size") is None
    )


def _replace(worker: int, model: Any, write: Callable[..., Any], named: dict[str, Any]) -> None:
    """Write beside the file, then put it in its place: other workers may be reading the one before."""
    path = Path(named["filepath"]).resolve()
    beside = path.with_name(f".{worker}-{os.getpid()}-{path.name}")
    try:
        write(model, **{**named, "filepath": str(beside)})
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
