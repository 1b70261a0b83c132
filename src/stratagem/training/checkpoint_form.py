"""What a checkpoint calls the parts of a state: by what they are to the model, not by where a strategy keeps them.

So what one strategy saved, any other finds again. States are taken apart into named host arrays here, and put
together from them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.devices.global_arrays import put
from stratagem.errors import KeepError
from stratagem.keep import StoredArray
from stratagem.runtime.host_memory import host_view
from stratagem.waist import TrainState
from stratagem.waist.loss_functions import leaf_names

_SHOWN = 5


def named(state: TrainState) -> dict[str, Any]:
    """All arrays of a state by name: `params/…`, `opt_state/…`, `state/…` and `ema/…`."""
    recipe = state.recipe
    found = dict(zip((f"params/{name}" for name in recipe.names), state.flat_params, strict=True))
    slots = (f"opt_state/{name}" for name in leaf_names(recipe.opt_state_tree))
    found |= zip(slots, state.flat_opt_state, strict=True)
    found |= {f"state/{number}": each for number, each in enumerate(state.flat_state)}
    if state.flat_ema is not None:
        found |= zip((f"ema/{name}" for name in recipe.names), state.flat_ema, strict=True)
    return found


def form_of(state: TrainState) -> dict[str, StoredArray]:
    """What a checkpoint of such a state holds."""
    whole = state if state.recipe.home.servers is None else state.recipe.home.servers.form
    return {name: _stored(leaf) for name, leaf in named(whole).items()} | form_of_tables(state)


def form_of_tables(state: TrainState) -> dict[str, StoredArray]:
    """What it holds of tables, if there are any."""
    return {} if state.recipe.tables is None else state.recipe.tables.form


def check_form(found: Mapping[str, StoredArray], expected: Mapping[str, StoredArray], where: str) -> None:
    """Raise unless a checkpoint holds what a state is made of.

    Raises:
        KeepError: It does not; the message shows what is missing, what is there besides, and what is different.
    """
    missing = [name for name in expected if name not in found]
    besides = [name for name in found if name not in expected]
    other = [
        f"{name} is {found[name]} there and {expected[name]} here"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if missing or besides or other:
        told = [
            *([f"lacks {_listed(missing)}"] if missing else []),
            *([f"has {_listed(besides)} besides"] if besides else []),
            *([f"differs: {_listed(other)}"] if other else []),
        ]
        raise KeepError(
            f"{where} is of another model or optimizer than this state: it {'; it '.join(told)}. Make the state as "
            "it was made when that was saved, or give this model a directory of its own"
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def host_copies(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Copies in host memory, which nobody else changes or lets go of."""
    ours = {name: _one_copy(leaf) if isinstance(leaf, jax.Array) else leaf for name, leaf in leaves.items()}
    for leaf in ours.values():  # all are on their way before the first is waited for
        if isinstance(leaf, jax.Array) and not _is_on_host(leaf):
            leaf.copy_to_host_async()
    return {name: _host_copy(leaf) for name, leaf in ours.items()}


def filled(
    like: TrainState, values: Mapping[str, Any], step: int, seed: int, *, takes_own: bool
) -> TrainState:
    """A state of these values, each where the one in `like` is.

    Args:
        like: A state of the same form; its values are not looked at.
        values: Host arrays by name.
        step: The global step.
        seed: What random numbers are drawn from.
        takes_own: Whether state of a worker's own is taken too, rather than left as it is in `like`.
    """
    recipe = like.recipe
    placed = {
        name: _placed(values[name], leaf)
        for name, leaf in named(like).items()
        if takes_own or not _is_own(name, like)
    }
    current = {**named(like), **placed}
    ordered = iter([current[name] for name in named(like)])
    return TrainState(
        [next(ordered) for _ in like.flat_params],
        [next(ordered) for _ in like.flat_opt_state],
        [next(ordered) for _ in like.flat_state],
        None if like.flat_ema is None else [next(ordered) for _ in like.flat_ema],
        _placed(np.asarray(step, np.int32), like.step),
        recipe if recipe.seed == seed else replace(recipe, seed=seed),
    )


def _is_own(name: str, like: TrainState) -> bool:
    kind, _, number = name.partition("/")
    return kind == "state" and like.kinds[int(number)] == "own"


def serving_names(state: TrainState) -> list[str]:
    """The parameters' names as others like to read them: `dense/kernel`.

    Raises:
        KeepError: Two parameters would have the same one.
    """
    placeholder = jax.tree.unflatten(state.recipe.params_tree, range(len(state.flat_params)))
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise KeepError(f"two parameters would be called {twice[0]!r} in one file: rename one of them")
    return names


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _stored(leaf: Any) -> StoredArray:
    if _is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return StoredArray(tuple(leaf.shape), str(np.dtype(leaf.dtype)))


def _one_copy(leaf: jax.Array) -> jax.Array:
    """The array on one device, if it is on many; a key as numbers."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf


def _is_on_host(leaf: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in leaf.devices())


def _host_copy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or len(leaf.devices()) > 1:
        return np.array(leaf)
    leaf.block_until_ready()
    # JAX keeps what it has copied to the host; on the host itself a step could not reuse what NumPy sees for longer.
    return np.array(host_view(leaf)) if _is_on_host(leaf) else np.asarray(leaf)


def _placed(value: Any, like: Any) -> Any:
    if not isinstance(like, jax.Array):
        return np.asarray(value)
    if _is_key(like):
        value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(like))
    return put(value, like.sharding)
