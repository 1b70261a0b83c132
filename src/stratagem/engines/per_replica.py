"""Values that each replica has one of, and what a user does with them by hand: run, reduce and gather."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Array, Workers


@dataclass(frozen=True)
class PerReplica:
    """The values of this process's replicas, in the order of their devices.

    Example:
        >>> PerReplica((1, 2)).values
        (1, 2)
    """

    values: tuple[Any, ...]


def run(replicas: Replicas, fn: Callable[..., Any], args: Sequence[Any]) -> PerReplica:
    """Call a function once for each replica, on its device, with its part of the arguments."""
    results = []
    for number, device in enumerate(replicas.devices):
        part = partial(_part, replicas, number)
        with jax.default_device(device):
            results.append(fn(*(jax.tree.map(part, arg, is_leaf=_is_per_replica) for arg in args)))
    return PerReplica(tuple(results))


def _part(replicas: Replicas, number: int, leaf: Any) -> Any:
    device = replicas.devices[number]
    if isinstance(leaf, PerReplica):
        return leaf.values[number]
    if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
        if not leaf.is_fully_replicated and leaf.sharding != replicas.split:
            return jax.device_put(leaf, device)  # a sharded variable is whole where it is used
        return next(shard.data for shard in leaf.addressable_shards if shard.device == device)
    return leaf


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def reduce(workers: Workers, replicas: int, in_sync: int, value: Any, axis: int | None, is_mean: bool) -> Any:
    """Return the sum or the mean of values over all replicas of all workers.

    Args:
        workers: The workers.
        replicas: The number of this worker's replicas.
        in_sync: The number of all workers' replicas.
        value: A `PerReplica`, or a value that is the same on every replica.
        axis: An axis to reduce along too: then a mean is over all elements along it, on all replicas.
        is_mean: Whether to divide the sum.
    """

    def reduced(column: list[Array]) -> Any:
        if axis is None:
            total = sum(np.sum(part, axis=0) for part in workers.gather(np.stack(column)))
            return jnp.asarray(total / in_sync if is_mean else total)
        total = sum(workers.gather(np.sum([part.sum(axis=axis) for part in column], axis=0)))
        lengths = workers.gather(np.asarray(sum(part.shape[axis] for part in column)))
        return jnp.asarray(total / sum(int(length) for length in lengths) if is_mean else total)

    columns, tree = _columns(value, replicas)
    return jax.tree.unflatten(tree, [reduced(column) for column in columns])


def gather(workers: Workers, replicas: int, value: Any, axis: int) -> Any:
    """Return the values of all replicas of all workers, joined along an axis."""
    columns, tree = _columns(value, replicas)
    gathered = [workers.gather(np.concatenate(column, axis=axis)) for column in columns]
    return jax.tree.unflatten(
        tree, [jnp.asarray(np.concatenate(list(parts), axis=axis)) for parts in gathered]
    )


def _columns(value: Any, replicas: int) -> tuple[list[list[Array]], Any]:
    """Return, for each leaf of a value, its values on the replicas."""
    values = value.values if isinstance(value, PerReplica) else (value,) * replicas
    flattened = [jax.tree.flatten(each) for each in values]
    return [
        [np.asarray(leaf) for leaf in column]
        for column in zip(*(leaves for leaves, _ in flattened), strict=True)
    ], flattened[0][1]
