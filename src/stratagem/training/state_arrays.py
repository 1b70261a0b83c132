"""A state as named host arrays, as a checkpoint stores it, and back.

Names say what an array is to the model, not where a strategy keeps it: so any strategy can restore what another saved.
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

_MOST_NAMES = 5


def named_arrays(state: TrainState) -> dict[str, Any]:
    """Return all arrays of a state by name: `params/…`, `opt_state/…`, `state/…` and `ema/…`."""
    recipe = state.recipe
    arrays = dict(zip((f"params/{name}" for name in recipe.names), state.flat_params, strict=True))
    slots = (f"opt_state/{name}" for name in leaf_names(recipe.opt_state_tree))
    arrays |= zip(slots, state.flat_opt_state, strict=True)
    arrays |= {f"state/{number}": each for number, each in enumerate(state.flat_state)}
    if state.flat_ema is not None:
        arrays |= zip((f"ema/{name}" for name in recipe.names), state.flat_ema, strict=True)
    return arrays


def form_of(state: TrainState) -> dict[str, StoredArray]:
    """Return the shapes and dtypes of all arrays in a checkpoint of such a state."""
    whole = state if state.recipe.home.servers is None else state.recipe.home.servers.form
    return {name: _stored_form(leaf) for name, leaf in named_arrays(whole).items()} | form_of_tables(state)


def form_of_tables(state: TrainState) -> dict[str, StoredArray]:
    """Return the shapes and dtypes of the tables in it, if there are any."""
    return {} if state.recipe.tables is None else state.recipe.tables.form


def check_form(actual: Mapping[str, StoredArray], expected: Mapping[str, StoredArray], where: str) -> None:
    """Raise a `KeepError`, which shows the differences, unless a checkpoint holds exactly the arrays of a state.

    Args:
        actual: The arrays that the checkpoint holds.
        expected: The arrays of the state.
        where: The name of the checkpoint in the message.
    """
    missing = [name for name in expected if name not in actual]
    extra = [name for name in actual if name not in expected]
    changed = [
        f"{name} is {actual[name]} there and {expected[name]} here"
        for name in expected
        if name in actual and actual[name] != expected[name]
    ]
    if missing or extra or changed:
        differences = [
            *([f"lacks {_list_names(missing)}"] if missing else []),
            *([f"also has {_list_names(extra)}"] if extra else []),
            *([f"differs: {_list_names(changed)}"] if changed else []),
        ]
        raise KeepError(
            f"{where} is of another model or optimizer than this state: it {'; it '.join(differences)}. Make the state as "
            "it was made when that was saved, or give this model a directory of its own"
        )


def _list_names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def host_copies(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Copy arrays to host memory that nobody else changes or frees."""
    single = {name: _one_copy(leaf) if isinstance(leaf, jax.Array) else leaf for name, leaf in leaves.items()}
    for leaf in single.values():  # start all transfers before waiting for the first
        if isinstance(leaf, jax.Array) and not _is_on_host(leaf):
            leaf.copy_to_host_async()
    return {name: _host_copy(leaf) for name, leaf in single.items()}


def build_state(
    like: TrainState, values: Mapping[str, Any], step: int, seed: int, *, with_own: bool
) -> TrainState:
    """Build a state from these values, each placed where its counterpart in `like` is.

    Args:
        like: A state of the same form, whose values are ignored.
        values: Host arrays by name.
        step: The global step.
        seed: The seed of random numbers.
        with_own: Whether to replace state that belongs to one worker, too, rather than leave it as it is in `like`.
    """
    recipe = like.recipe
    ordered = iter(
        [
            _place(values[name], leaf) if with_own or not _is_own(name, like) else leaf
            for name, leaf in named_arrays(like).items()
        ]
    )
    return TrainState(
        [next(ordered) for _ in like.flat_params],
        [next(ordered) for _ in like.flat_opt_state],
        [next(ordered) for _ in like.flat_state],
        None if like.flat_ema is None else [next(ordered) for _ in like.flat_ema],
        _place(np.asarray(step, np.int32), like.step),
        recipe if recipe.seed == seed else replace(recipe, seed=seed),
    )


def _is_own(name: str, like: TrainState) -> bool:
    kind, _, number = name.partition("/")
    return kind == "state" and like.kinds[int(number)] == "own"


def serving_names(state: TrainState) -> list[str]:
    """Return the parameters' names in the usual notation: `dense/kernel`.

    Raises:
        KeepError: Two parameters would have the same name.
    """
    placeholder = jax.tree.unflatten(state.recipe.params_tree, range(len(state.flat_params)))
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/") or "params"
        for path, _ in jax.tree_util.tree_leaves_with_path(placeholder)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise KeepError(f"two parameters would have the name {twice[0]!r} in one file: rename one of them")
    return names


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _stored_form(leaf: Any) -> StoredArray:
    if _is_key(leaf):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return StoredArray(tuple(leaf.shape), str(np.dtype(leaf.dtype)))


def _one_copy(leaf: jax.Array) -> jax.Array:
    """Return one device's copy of an array that is replicated; turn a key into numbers."""
    if _is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf


def _is_on_host(leaf: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in leaf.devices())


def _host_copy(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or len(leaf.devices()) > 1:
        return np.array(leaf)
    leaf.block_until_ready()
    # JAX keeps its copies of device arrays. On the host, copy: a step cannot reuse memory that NumPy sees.
    return np.array(host_view(leaf)) if _is_on_host(leaf) else np.asarray(leaf)


def _place(value: Any, like: Any) -> Any:
    if not isinstance(like, jax.Array):
        return np.asarray(value)
    if _is_key(like):
        value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(like))
    return put(value, like.sharding)
