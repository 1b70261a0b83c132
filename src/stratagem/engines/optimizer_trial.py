"""Whether the optimizers of all workers do the same.

What an optimizer is set to cannot be asked for; what it does can be tried, on a model of a few single numbers.
"""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.workers import Array
from stratagem.errors import StrategyError
from stratagem.waist import Arrays, OptaxUpdater, TrainState, Updater

_log = logging.getLogger("stratagem")

_GRADIENTS = (0.0, 1e-7, 0.01, 1.0, 100.0, *[1.0] * 10)
"""Weight decay shows alone without a gradient, what keeps a division from zero with a small one, clipping with a large
one, and how slowly that is forgotten with those that follow it."""
_MOST_TRIED = 8
_MOST_TRIED_WHOLE = 64
_RELATIVE, _ABSOLUTE = 0.01, 1e-10


def check_changes(told: Sequence[Array], names: Sequence[str]) -> None:
    """Compare what the optimizers of all workers do.

    Args:
        told: What `trial_changes` gave on each worker; one that could not try is left out.
        names: The parameters that were tried.

    Raises:
        StrategyError: They do not do the same; small differences are those between processors.
    """
    tried = {
        worker: changes
        for worker, changes in enumerate(told)
        if changes.shape == (len(_GRADIENTS), len(names))
    }
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
    update, place = divmod(int(np.argmax(apart)), len(names))
    raise StrategyError(
        f"the optimizer of worker {', '.join(map(str, different))} does not do what that of worker {first} does: in a trial, at update "
        f"{update + 1}, with a gradient of {_GRADIENTS[update]:g}, {names[place]} changes by "
        f"{tried[first][update, place]:.3g} on worker {first} and by {tried[worker][update, place]:.3g} on worker {worker}. "
        "All workers must use the same optimizer with the same settings"
    )


def trial_changes(state: TrainState) -> Array:
    """What the optimizer makes of a few gradients: how much single numbers that stand for the parameters change.

    It begins with the optimizer's state as it is, since settings that are kept there are worker 0's on all workers.

    Returns:
        A row per gradient and a column per parameter that is tried; nothing if the optimizer cannot be tried.
    """
    try:
        # In float64 the change of a parameter tells the update, however small it is beside the parameter.
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            return _try(state)
    except Exception:  # noqa: BLE001  some optimizers want more than gradients, or parameters of a certain size
        _log.debug("the optimizer cannot be tried on single numbers", exc_info=True)
        return np.zeros((0, 0), np.float32)


def _try(state: TrainState) -> Array:
    tried = tried_places(state)
    if not tried:
        return np.zeros((0, 0), np.float32)
    params: Arrays = [None] * len(state.flat_params)
    for place in tried:
        params[place] = _stand_in(state.flat_params[place])
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


def tried_places(state: TrainState) -> list[int]:
    """Which parameters are tried: to trace and compile an update of hundreds would take seconds.

    Only an optax optimizer can be had for a part of them; others are tried whole or not at all.
    """
    count = len(state.flat_params)
    if not isinstance(state.recipe.updater, OptaxUpdater):
        return list(range(count)) if count <= _MOST_TRIED_WHOLE else []
    if count <= _MOST_TRIED:
        return list(range(count))
    # Optimizers treat matrices otherwise than vectors: some of all kinds are taken.
    kinds = [(np.ndim(param), str(param.dtype)) for param in state.flat_params]
    by_kind = sorted(range(count), key=lambda place: (kinds[place], place))
    return sorted(by_kind[number * (count - 1) // (_MOST_TRIED - 1)] for number in range(_MOST_TRIED))


def _reduced(state: TrainState, params: Arrays) -> tuple[Updater, Arrays]:
    """The optimizer and its state for the parameters that are tried."""
    updater = state.recipe.updater
    if not isinstance(updater, OptaxUpdater):
        shapes = {np.shape(param) for param in state.flat_params}
        return updater, [_reduced_slot(slot, shapes) for slot in state.flat_opt_state]
    updater = copy.copy(updater)  # `init` notes the structure of the state
    leaves = updater.init(params)
    whole = dict(jax.tree_util.tree_leaves_with_path(state.opt_state))
    small = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(updater.state_tree, leaves))
    return updater, [_cut(whole[path], like) for path, like in small]


def _stand_in(param: Any) -> Array:
    return np.ones((1,) * np.ndim(param), _wide(param.dtype))


def _wide(dtype: Any) -> Any:
    return np.float64 if jnp.issubdtype(dtype, jnp.floating) else dtype


def _reduced_slot(slot: Any, shapes: set[tuple[int, ...]]) -> Array:
    """The first number of what belongs to a parameter; anything else as it is."""
    host = np.asarray(slot)
    if host.shape not in shapes or not jnp.issubdtype(host.dtype, jnp.floating):
        return host
    return host[(slice(0, 1),) * host.ndim].astype(np.float64)


def _cut(slot: Any, like: Any) -> Array:
    """As much of a slot as its reduced form holds; that form as it is if it is another."""
    host, small = np.asarray(slot), np.asarray(like)
    if host.ndim != small.ndim or any(map(int.__lt__, host.shape, small.shape)):
        return small
    return host[tuple(map(slice, small.shape))].astype(small.dtype)
