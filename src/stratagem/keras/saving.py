"""Saving and loading where several workers run the script: the chief writes, atomically, for all of them."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras

from stratagem.errors import StrategyError
from stratagem.keras.adopted_model import AdoptedModel
from stratagem.keras.method_arguments import named_arguments
from stratagem.keras.model_tables import ModelTables

WRITERS = ("save", "save_weights", "export")
"""The methods of a model that write files."""
_SINGLE_FILES = (".keras", ".h5", ".hdf5")


def save(adopted: AdoptedModel, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call one of these methods on the chief, and on other workers if they write elsewhere.

    Workers that do not train in step have different values: a worker that leaves the writing to the chief takes over the
    values that the chief has written.
    """
    strategy, model = adopted.strategy, adopted.model
    write: Callable[..., Any] = getattr(type(model), name)
    files = strategy.workers.files
    named = named_arguments(name, model, args, kwargs)
    path = named.get("filepath")
    tables = adopted.tables()
    if tables is not None:
        write = partial(_write_with_rows, tables, name, write, path)
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


def load_weights(adopted: AdoptedModel, /, *args: Any, **kwargs: Any) -> Any:
    """Load weights, and the rows of tables that were saved with them.

    Raises:
        StrategyError: The file has rows that can be loaded only with the whole model.
    """
    model, tables = adopted.model, adopted.tables()
    if tables is None:
        return type(model).load_weights(model, *args, **kwargs)
    path = os.fspath(named_arguments("load_weights", model, args, kwargs)["filepath"])
    if path.endswith(".keras"):
        raise StrategyError(
            f"load_weights was given {path}, which has the rows of embeddings where only keras.models.load_model reads them: "
            "use that in strategy.scope(), or a file that save_weights has written"
        )
    returned = type(model).load_weights(model, *args, **kwargs)
    tables.load(path, adopted.server_model)
    return returned


def _write_with_rows(
    tables: ModelTables, name: str, write: Callable[..., Any], path: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Write a model with its rows: in the same file by Keras, or in files beside it.

    Raises:
        StrategyError: Rows cannot be kept in a file of this kind.
    """
    if name == "export" or not isinstance(path, str | os.PathLike):
        raise StrategyError(
            f"{name} cannot write the rows of sg.keras.Embedding: save the model to a .keras file"
        )
    if name == "save" and not os.fspath(path).endswith(".keras"):
        raise StrategyError(
            f"the model is to be saved to {path}, and the rows of sg.keras.Embedding are kept in .keras files only: choose "
            "such a name"
        )
    returned = write(*args, **kwargs)
    if name == "save_weights":
        tables.export(os.fspath(path))
    return returned


def _is_one_file(model: Any, name: str, named: dict[str, Any]) -> bool:
    """Return whether Keras itself writes exactly one file, without asking the user first."""
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
    """Write beside the file, then rename: other workers may be reading the previous one."""
    path = Path(named["filepath"]).resolve()
    beside = path.with_name(f".{worker}-{os.getpid()}-{path.name}")
    try:
        write(model, **{**named, "filepath": str(beside)})
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
