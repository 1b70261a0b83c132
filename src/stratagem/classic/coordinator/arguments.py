"""The arguments of a closure, as they are when it is scheduled. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from stratagem.classic.coordinator.per_worker_dataset import PerWorkerDataset
from stratagem.classic.coordinator.remote_value import RemoteValue
from stratagem.errors import StrategyError
from stratagem.runtime.remote_function import is_leaf


def kept_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, copied where the caller may change them while the closure is queued.

    Raises:
        StrategyError: They are no arguments, or something among them is not with the workers.
    """
    if not isinstance(args, tuple | list):
        raise StrategyError(
            f"args is one {type(args).__name__}; give a tuple or list of all arguments, as in schedule(fn, args=(x,))"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise StrategyError(f"kwargs is one {type(kwargs).__name__}; give a dictionary of arguments by name")
    kept: tuple[tuple[Any, ...], dict[str, Any]] = jax.tree.map(
        _kept, (tuple(args), dict(kwargs or {})), is_leaf=is_leaf
    )
    return kept


def _kept(leaf: Any) -> Any:
    """An argument as it is now: its memory may be used for the next batch."""
    if isinstance(leaf, PerWorkerDataset):
        raise StrategyError(
            f"the dataset of {leaf.function} is an argument; give an iterator over it, iter(dataset), made once: each "
            "closure gets the next batch of its worker"
        )
    if isinstance(leaf, RemoteValue):
        raise StrategyError(
            "a RemoteValue is an argument, which closures do not wait for; give its value, coordinator.fetch(value)"
        )
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
