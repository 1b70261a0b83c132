"""How a model is saved where several workers run the script: by the chief, in one go, for all of them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from stratagem.keras.adopted import AdoptedModel
from stratagem.keras.arguments import named_arguments

WRITERS = ("save", "save_weights", "export")
"""The methods of a model that write files."""
_SINGLE_FILES = (".keras", ".h5", ".hdf5")


def save(adopted: AdoptedModel, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call one of these methods: on the chief, and elsewhere where the chief does not write the same.

    Workers that do not train in step have different values: who has left the writing to the chief takes over what the
    chief has written.
    """
    strategy, model = adopted.strategy, adopted.model
    write: Callable[..., Any] = getattr(type(model), name)
    files = strategy.workers.files
    named = named_arguments(name, model, args, kwargs)
    path = named.get("filepath")
    if files is None or not isinstance(path, str | os.PathLike):
        return write(model, *args, **kwargs)
    adopted.agree()  # or what is saved would be older than what is evaluated
    if not _is_one_file(model, name, named):
        files.save(os.fspath(path), lambda: write(model, **named))
        return None
    is_written = files.save(os.fspath(path), lambda: _replace(strategy.workers.index, model, write, named))
    if not is_written and strategy.feed.takes_turns:
        adopted.take_over(path)
    return None


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
