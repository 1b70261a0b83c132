"""Workers that are about to train in step begin with worker 0's values, and with optimizers that do the same.

To go on alike they need the same parameters, by name, shape and dtype, and the same optimizer. An optimizer cannot be asked
for its settings, but it can be tried, on a model of a few single numbers.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.workers import Array, Workers
from stratagem.errors import StrategyError
from stratagem.waist import Arrays, OptaxUpdater, TrainState, Updater

_log = logging.getLogger("stratagem")

_MOST_NAMED = 5
_SAME_SCRIPT = "All workers must run the same script with the same arguments"


def with_common_start(state: TrainState, workers: Workers) -> TrainState:
    """Return a new state with worker 0's values; each worker keeps state of its own. All workers call this together.

    Raises:
        StrategyError: The workers have different models or optimizers.
    """
    if workers.count == 1:
        return state
    common = _with_values_of_first(state, workers)
    changes = workers.gather(trial_changes(common))
    check_changes(changes, [common.recipe.names[number] for number in tried_params(common)])
    return common


def _with_values_of_first(state: TrainState, workers: Workers) -> TrainState:
    shared = [number for number, kind in enumerate(state.kinds) if kind != "own"]
    ema = state.flat_ema or []
    lists = [state.flat_params, state.flat_opt_state, [state.flat_state[number] for number in shared], ema]
    form, values = _digests([array for arrays in lists for array in arrays])
    own = form + values + json.dumps(state.recipe.names).encode()
    gathered = [each.tobytes() for each in workers.gather(np.frombuffer(own, np.uint8))]
    check_names([json.loads(each[len(form + values) :]) for each in gathered])
    first = gathered[0]
    different = [worker for worker, each in enumerate(gathered) if each[: len(form)] != first[: len(form)]]
    if different:
        raise StrategyError(
            f"the model of worker {different[0]} is not that of worker 0: parameters, optimizer and state must have the same "
            "shapes and dtypes on all workers; make the model by the same code everywhere"
        )
    if all(each == first for each in gathered):
        return state
    _log.info("worker %d of %d begins with the values of worker 0", workers.index, workers.count)
    params, opt_state, others, ema = [
        [workers.gather(np.asarray(array))[0] for array in arrays] for arrays in lists
    ]
    flat_state = list(state.flat_state)
    for number, other in zip(shared, others, strict=True):
        flat_state[number] = other
    averages = None if state.flat_ema is None else ema
    return replace(
        state, flat_params=params, flat_opt_state=opt_state, flat_state=flat_state, flat_ema=averages
    )


def _digests(arrays: Arrays) -> tuple[bytes, bytes]:
    """Return a digest of the arrays' shapes and dtypes, and one of their values."""
    form, values = hashlib.sha256(), hashlib.sha256()
    for array in arrays:
        host = np.ascontiguousarray(array)
        form.update(f"{host.dtype}{host.shape};".encode())
        values.update(host.tobytes())
    return form.digest(), values.digest()


# Names.


def check_names(names: Sequence[Sequence[str]]) -> None:
    """Compare the names of the parameters of all workers.

    Args:
        names: For each worker the names, in its order.

    Raises:
        StrategyError: They are not the same; the message says which workers have names that not all have.
    """
    different = [worker for worker, own in enumerate(names) if own != names[0]]
    if not different:
        return
    common = set.intersection(*map(set, names))
    owners: dict[tuple[str, ...], list[int]] = {}
    for worker, own in enumerate(names):
        owners.setdefault(tuple(name for name in own if name not in common), []).append(worker)
    missing = [f"{_some(special)} on {_workers(who)}" for special, who in owners.items() if special]
    raise StrategyError(
        f"the parameters of {_workers(different)} do not have the names of those of worker 0: "
        + (f"not all have {', '.join(missing)}" if missing else "they come in another order")
        + f". {_SAME_SCRIPT}"
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' if len(numbers) > 1 else ''} {_some([str(number) for number in numbers])}"


# Optimizers.

_GRADIENTS = (0.0, 1e-7, 0.01, 1.0, 100.0, *[1.0] * 10)
"""Weight decay shows without a gradient, what keeps a division from zero with a small one, clipping with a large one, and
the optimizer's memory with those that follow it."""
_MOST_TRIED = 8
_MOST_TRIED_WHOLE = 64
_RELATIVE, _ABSOLUTE = 0.01, 1e-10


def check_changes(changes: Sequence[Array], names: Sequence[str]) -> None:
    """Compare what the optimizers of all workers do.

    Args:
        changes: The results of `trial_changes` on all workers; a worker that could not try its optimizer is left out.
        names: The parameters that were tried.

    Raises:
        StrategyError: They do not do the same; small differences, as between processors, are allowed.
    """
    tried = {worker: own for worker, own in enumerate(changes) if own.shape == (len(_GRADIENTS), len(names))}
    if not tried:
        return
    first, *others = tried
    same = {
        worker: np.isclose(tried[worker], tried[first], rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
        for worker in others
    }
    different = [worker for worker in others if not same[worker].all()]
    if not different:
        return
    worker = different[0]
    apart = np.where(same[worker], -1.0, np.nan_to_num(np.abs(tried[worker] - tried[first]), nan=np.inf))
    update, number = divmod(int(np.argmax(apart)), len(names))
    raise StrategyError(
        f"the optimizer of worker {', '.join(map(str, different))} does not do what that of worker {first} does: in a trial, at update "
        f"{update + 1}, with a gradient of {_GRADIENTS[update]:g}, {names[number]} changes by "
        f"{tried[first][update, number]:.3g} on worker {first} and by {tried[worker][update, number]:.3g} on worker {worker}. "
        "All workers must use the same optimizer with the same settings"
    )


def trial_changes(state: TrainState) -> Array:
    """Try the optimizer with a few gradients on single numbers, which stand for parameters, and return their changes.

    The trial begins with the optimizer's present state: settings that are kept there are worker 0's on all workers.

    Returns:
        A row per gradient and a column per parameter; empty if the optimizer cannot be tried.
    """
    try:
        # In float64 the change of a parameter shows the update, however small it is beside the parameter.
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            return _try(state)
    except Exception:  # noqa: BLE001  some optimizers need more than gradients, or parameters of a certain size
        _log.debug("the optimizer cannot be tried on single numbers", exc_info=True)
        return np.zeros((0, 0), np.float32)


def _try(state: TrainState) -> Array:
    tried = tried_params(state)
    if not tried:
        return np.zeros((0, 0), np.float32)
    params: Arrays = [None] * len(state.flat_params)
    for number in tried:
        params[number] = _stand_in(state.flat_params[number])
    updater, opt_state = _reduced(state, params)

    def update(opt_state: Arrays, gradient: Any) -> tuple[Arrays, Arrays]:
        grads = jax.tree.map(lambda param: jnp.full(param.shape, gradient, param.dtype), params)
        new, opt_state = updater.update(params, opt_state, grads)
        return [jnp.sum(each) - 1 for each in new], opt_state

    compiled = jax.jit(update)
    rows = []
    for gradient in _GRADIENTS:
        changes, opt_state = compiled(opt_state, np.float64(gradient))
        rows.append([np.float32(change) for change in changes])
    return np.array(rows, np.float32).reshape(len(_GRADIENTS), len(tried))


def tried_params(state: TrainState) -> list[int]:
    """Return the numbers of the parameters to try: tracing and compiling an update of hundreds would take seconds.

    Only optax optimizers can be tried on some of their parameters; others are tried whole or not at all.
    """
    count = len(state.flat_params)
    if not isinstance(state.recipe.updater, OptaxUpdater):
        return list(range(count)) if count <= _MOST_TRIED_WHOLE else []
    if count <= _MOST_TRIED:
        return list(range(count))
    # Some optimizers treat matrices differently from vectors: some parameters of each kind are taken.
    kinds = [(np.ndim(param), str(param.dtype)) for param in state.flat_params]
    by_kind = sorted(range(count), key=lambda number: (kinds[number], number))
    return sorted(by_kind[number * (count - 1) // (_MOST_TRIED - 1)] for number in range(_MOST_TRIED))


def _reduced(state: TrainState, params: Arrays) -> tuple[Updater, Arrays]:
    """Return the optimizer and its state for the parameters that are tried."""
    updater = state.recipe.updater
    if not isinstance(updater, OptaxUpdater):
        shapes = {np.shape(param) for param in state.flat_params}
        return updater, [_first_number(slot, shapes) for slot in state.flat_opt_state]
    updater = copy.copy(updater)  # `init` notes the structure of the state
    leaves = updater.init(params)
    whole = dict(jax.tree_util.tree_leaves_with_path(state.opt_state))
    small = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(updater.state_tree, leaves))
    return updater, [_corner(whole[path], like) for path, like in small]


def _stand_in(param: Any) -> Array:
    is_floating = jnp.issubdtype(param.dtype, jnp.floating)
    return np.ones((1,) * np.ndim(param), np.float64 if is_floating else param.dtype)


def _first_number(slot: Any, shapes: set[tuple[int, ...]]) -> Array:
    """Return the first number of a slot that belongs to a parameter, and any other slot unchanged."""
    host = np.asarray(slot)
    if host.shape not in shapes or not jnp.issubdtype(host.dtype, jnp.floating):
        return host
    return host[(slice(0, 1),) * host.ndim].astype(np.float64)


def _corner(slot: Any, like: Any) -> Array:
    """Return the corner of a slot that has the shape of its reduced form; the reduced form if it does not fit."""
    host, small = np.asarray(slot), np.asarray(like)
    if host.ndim != small.ndim or any(map(int.__lt__, host.shape, small.shape)):
        return small
    return host[tuple(map(slice, small.shape))].astype(small.dtype)
