"""Workers that are about to train in step begin with the same values: those of worker 0."""

import hashlib
import logging
from dataclasses import replace
from typing import Any

import numpy as np

from stratagem.errors import StrategyError
from stratagem.strategies.workers import Array, Workers
from stratagem.waist import Arrays, TrainState

_log = logging.getLogger("stratagem")


def agreed(state: TrainState, workers: Workers) -> TrainState:
    """A new state with worker 0's values; state that is each worker's own stays so. All workers come here together.

    Raises:
        StrategyError: The workers have different models.
    """
    if workers.count == 1:
        return state
    shared = [place for place, kind in enumerate(state.kinds) if kind != "own"]
    ema = state.flat_ema or []
    lists = [state.flat_params, state.flat_opt_state, [state.flat_state[place] for place in shared], ema]
    form, values = _digests([array for arrays in lists for array in arrays])
    told = [each.tobytes() for each in workers.gather(np.frombuffer(form + values, np.uint8))]
    different = [worker for worker, each in enumerate(told) if each[: len(form)] != told[0][: len(form)]]
    if different:
        raise StrategyError(
            f"the model of worker {different[0]} is not that of worker 0: parameters, optimizer and state must have the same "
            "shapes and dtypes on all workers; make the model by the same code everywhere"
        )
    if all(each == told[0] for each in told):
        return state
    _log.info("worker %d of %d begins with the values of worker 0", workers.index, workers.count)
    params, opt_state, others, ema = [[_first(array, workers) for array in arrays] for arrays in lists]
    flat_state = list(state.flat_state)
    for place, other in zip(shared, others, strict=True):
        flat_state[place] = other
    averages = None if state.flat_ema is None else ema
    return replace(
        state, flat_params=params, flat_opt_state=opt_state, flat_state=flat_state, flat_ema=averages
    )


def _digests(arrays: Arrays) -> tuple[bytes, bytes]:
    """What the arrays are like, and what is in them."""
    form, values = hashlib.sha256(), hashlib.sha256()
    for array in arrays:
        host = np.ascontiguousarray(array)
        form.update(f"{host.dtype}{host.shape};".encode())
        values.update(host.tobytes())
    return form.digest(), values.digest()


def _first(array: Any, workers: Workers) -> Array:
    return workers.gather(np.asarray(array))[0]
