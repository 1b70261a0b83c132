"""How a checkpoint that the chief has read becomes the state of every worker, or of the servers."""

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import StoredArray
from stratagem.tables.table_files import NewRows
from stratagem.training.checkpoint_files import Saved
from stratagem.training.checkpoint_form import filled, form_of
from stratagem.waist import TrainState
from stratagem.waist.home import ServerHome, WorkerHome

_log = logging.getLogger("stratagem")
_NOTE = "restored a checkpoint"
Read = Callable[[], Saved | None]
Restored = tuple[TrainState, Any]
"""A state, and where its data stood."""


def restored(like: TrainState, read: Read, goes_back: bool) -> Restored | None:
    """The state that a checkpoint holds, laid out as `like` is; `None` if there is no checkpoint.

    Args:
        like: A state of the same form.
        read: Reads the checkpoint; called by the chief only.
        goes_back: Whether servers are to have it even if they are ahead of it.
    """
    if like.recipe.home.servers is not None:
        return _from_servers(like, like.recipe.home.servers, read, goes_back)
    if like.recipe.home.workers is not None:
        return _among_workers(like, like.recipe.home.workers, read)
    saved = read()
    if saved is None:
        return None
    if saved.tables is not None and like.recipe.tables is not None:
        like.recipe.tables.restore(saved.tables)
    return filled(like, saved.arrays, saved.step, saved.seed, takes_own=True), saved.data


# Where all have all of it.


def _among_workers(like: TrainState, workers: WorkerHome, read: Read) -> Restored | None:
    saved, error = _tried(read) if workers.is_chief else (None, None)
    told = workers.gather(np.frombuffer(_header(saved, error), np.uint8))[0]
    if error is not None:
        raise error
    header = _opened(told.tobytes())
    if header is None:
        return None
    nothing = np.zeros(0, np.uint8)
    values = {}
    for name, stored in form_of(like).items():
        own = nothing if saved is None else _bytes_of(saved.arrays[name])
        values[name] = _typed(workers.gather(own)[0], stored)
    state = filled(like, values, header["step"], header["seed"], takes_own=workers.is_chief)
    return state, _data(header)


def _bytes_of(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _typed(raw: Any, stored: StoredArray) -> Any:
    return np.ascontiguousarray(raw).view(stored.element_type).reshape(stored.shape)


# Where servers have it.


def _from_servers(like: TrainState, served: ServerHome, read: Read, goes_back: bool) -> Restored | None:
    if not served.is_chief:
        note = served.wait_for_notice(_NOTE)
        if note is None:
            return served.renew(like), None
        header = _opened(note)
        return None if header is None else (served.renew(_seeded(like, header["seed"])), _data(header))
    saved, error = _tried(read)
    try:
        if error is not None:
            raise error
        if saved is None:
            return None
        return _brought(like, served, saved, goes_back), saved.data
    finally:
        served.post_notice(_NOTE, _header(saved, error))


def _brought(like: TrainState, served: ServerHome, saved: Saved, goes_back: bool) -> TrainState:
    current = served.renew(like)
    if not goes_back and not served.has_pushed and int(current.step) >= saved.step:
        _log.info(
            "the parameter servers are at step %d already, and stay there: the newest checkpoint is of step %d",
            int(current.step),
            saved.step,
        )
        return current
    whole = filled(served.form, saved.arrays, saved.step, saved.seed, takes_own=True)
    served.assign(whole, saved.step, NewRows(saved.tables))
    return served.renew(_seeded(replace(current, flat_state=whole.flat_state), saved.seed))


def _seeded(state: TrainState, seed: int) -> TrainState:
    return replace(state, recipe=replace(state.recipe, seed=seed)) if state.recipe.seed != seed else state


# What the others are told.


def _tried(read: Read) -> tuple[Saved | None, KeepError | None]:
    try:
        return read(), None
    except KeepError as error:
        return None, error


def _header(saved: Saved | None, error: KeepError | None) -> bytes:
    told: dict[str, Any] = {"error": None if error is None else str(error), "step": None}
    if saved is not None:
        told |= {"step": saved.step, "seed": saved.seed}
        if isinstance(saved.data, bytes):
            told["bytes"] = b64encode(saved.data).decode()
        else:
            told["data"] = saved.data
    return json.dumps(told).encode()


def _opened(header: bytes) -> dict[str, Any] | None:
    told: dict[str, Any] = json.loads(header)
    if told["error"] is not None:
        raise KeepError(f"the chief could not restore: {told['error']}")
    return None if told["step"] is None else told


def _data(header: dict[str, Any]) -> Any:
    return b64decode(header["bytes"]) if "bytes" in header else header["data"]
