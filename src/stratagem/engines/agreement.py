"""Workers that are about to train in step begin with the same values, those of worker 0, and go on alike.

That they go on alike takes the same parameters, by name, shape and dtype, and the same optimizer.
"""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stratagem.engines.optimizer_trial import check_changes, trial_changes, tried_places
from stratagem.engines.workers import Array, Workers
from stratagem.errors import StrategyError
from stratagem.waist import Arrays, TrainState

_log = logging.getLogger("stratagem")

_MOST_NAMED = 5
_SAME_SCRIPT = "All workers must run the same script with the same arguments"


def agreed(state: TrainState, workers: Workers) -> TrainState:
    """A new state with worker 0's values; state that is each worker's own stays so. All workers come here together.

    Raises:
        StrategyError: The workers have different models or optimizers.
    """
    if workers.count == 1:
        return state
    begun = _with_first_values(state, workers)
    told = workers.gather(trial_changes(begun))
    check_changes(told, [begun.recipe.names[place] for place in tried_places(begun)])
    return begun


def _with_first_values(state: TrainState, workers: Workers) -> TrainState:
    shared = [place for place, kind in enumerate(state.kinds) if kind != "own"]
    ema = state.flat_ema or []
    lists = [state.flat_params, state.flat_opt_state, [state.flat_state[place] for place in shared], ema]
    form, values = _digests([array for arrays in lists for array in arrays])
    own = form + values + json.dumps(state.recipe.names).encode()
    told = [each.tobytes() for each in workers.gather(np.frombuffer(own, np.uint8))]
    check_names([json.loads(each[len(form + values) :]) for each in told])
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


# Names.


def check_names(told: Sequence[Sequence[str]]) -> None:
    """Compare the names of the parameters of all workers.

    Args:
        told: Each worker's names, in its order.

    Raises:
        StrategyError: They are not the same; the message says who has which that not all have.
    """
    different = [worker for worker, names in enumerate(told) if names != told[0]]
    if not different:
        return
    common = set.intersection(*map(set, told))
    holders: dict[tuple[str, ...], list[int]] = {}
    for worker, names in enumerate(told):
        holders.setdefault(tuple(name for name in names if name not in common), []).append(worker)
    found = [f"{_some(names)} on {_workers(who)}" for names, who in holders.items() if names]
    raise StrategyError(
        f"the parameters of {_workers(different)} do not have the names of those of worker 0: "
        + (f"not all have {', '.join(found)}" if found else "they come in another order")
        + f". {_SAME_SCRIPT}"
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' if len(numbers) > 1 else ''} {_some([str(number) for number in numbers])}"
