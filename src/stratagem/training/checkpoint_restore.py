"""Bring a checkpoint that the chief has read to every worker, or to the parameter servers."""

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import StoredArray
from stratagem.tables.table_files import NewRows
from stratagem.training.checkpoint_files import Checkpoint
from stratagem.training.state_arrays import build_state, form_of
from stratagem.waist import TrainState
from stratagem.waist.home import ServerHome, WorkerHome

_log = logging.getLogger("stratagem")
_NOTICE = "restored a checkpoint"
Read: TypeAlias = Callable[[], Checkpoint | None]
StateAndData: TypeAlias = tuple[TrainState, Any]
"""A state, and the position in its data."""


def restore_state(like: TrainState, read: Read, goes_back: bool) -> StateAndData | None:
    """Return the state of a checkpoint, which the chief reads, laid out as `like` is; `None` if there is no checkpoint.

    With `goes_back`, servers take the checkpoint's values even if they are ahead of it.
    """
    if like.recipe.home.servers is not None:
        return _from_servers(like, like.recipe.home.servers, read, goes_back)
    if like.recipe.home.workers is not None:
        return _among_workers(like, like.recipe.home.workers, read)
    checkpoint = read()
    if checkpoint is None:
        return None
    if checkpoint.tables is not None and like.recipe.tables is not None:
        like.recipe.tables.restore(checkpoint.tables)
    state = build_state(like, checkpoint.arrays, checkpoint.step, checkpoint.seed, with_own=True)
    return state, checkpoint.data


# Where every worker has the whole state.


def _among_workers(like: TrainState, workers: WorkerHome, read: Read) -> StateAndData | None:
    checkpoint, error = _try_reading(read) if workers.is_chief else (None, None)
    header_bytes = workers.gather(np.frombuffer(_encode_header(checkpoint, error), np.uint8))[0]
    if error is not None:
        raise error
    header = _decode_header(header_bytes.tobytes())
    if header is None:
        return None
    empty = np.zeros(0, np.uint8)
    values = {}
    for name, form in form_of(like).items():
        own = empty if checkpoint is None else _as_bytes(checkpoint.arrays[name])
        values[name] = _from_bytes(workers.gather(own)[0], form)
    state = build_state(like, values, header["step"], header["seed"], with_own=workers.is_chief)
    return state, _data(header)


def _as_bytes(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _from_bytes(raw: Any, form: StoredArray) -> Any:
    return np.ascontiguousarray(raw).view(form.element_type).reshape(form.shape)


# Where servers have the state.


def _from_servers(like: TrainState, served: ServerHome, read: Read, goes_back: bool) -> StateAndData | None:
    if not served.is_chief:
        note = served.wait_for_notice(_NOTICE)
        if note is None:
            return served.renew(like), None
        header = _decode_header(note)
        return None if header is None else (served.renew(_with_seed(like, header["seed"])), _data(header))
    checkpoint, error = _try_reading(read)
    try:
        if error is not None:
            raise error
        if checkpoint is None:
            return None
        return _send_to_servers(like, served, checkpoint, goes_back), checkpoint.data
    finally:
        served.post_notice(_NOTICE, _encode_header(checkpoint, error))


def _send_to_servers(
    like: TrainState, served: ServerHome, checkpoint: Checkpoint, goes_back: bool
) -> TrainState:
    current = served.renew(like)
    if not goes_back and not served.has_pushed and int(current.step) >= checkpoint.step:
        _log.info(
            "the parameter servers are at step %d already, and stay there: the newest checkpoint is of step %d",
            int(current.step),
            checkpoint.step,
        )
        return current
    whole = build_state(served.form, checkpoint.arrays, checkpoint.step, checkpoint.seed, with_own=True)
    served.assign(whole, checkpoint.step, NewRows(checkpoint.tables))
    return served.renew(_with_seed(replace(current, flat_state=whole.flat_state), checkpoint.seed))


def _with_seed(state: TrainState, seed: int) -> TrainState:
    return replace(state, recipe=replace(state.recipe, seed=seed)) if state.recipe.seed != seed else state


# The header by which the other workers learn what the chief has read.


def _try_reading(read: Read) -> tuple[Checkpoint | None, KeepError | None]:
    try:
        return read(), None
    except KeepError as error:
        return None, error


def _encode_header(checkpoint: Checkpoint | None, error: KeepError | None) -> bytes:
    header: dict[str, Any] = {"error": None if error is None else str(error), "step": None}
    if checkpoint is not None:
        header |= {"step": checkpoint.step, "seed": checkpoint.seed}
        if isinstance(checkpoint.data, bytes):
            header["bytes"] = b64encode(checkpoint.data).decode()
        else:
            header["data"] = checkpoint.data
    return json.dumps(header).encode()


def _decode_header(encoded: bytes) -> dict[str, Any] | None:
    header: dict[str, Any] = json.loads(encoded)
    if header["error"] is not None:
        raise KeepError(f"the chief could not restore: {header['error']}")
    return None if header["step"] is None else header


def _data(header: dict[str, Any]) -> Any:
    return b64decode(header["bytes"]) if "bytes" in header else header["data"]
