"""`on_device`: a function that always computes on one device, also when it is differentiated.

`sg.device` places the operations in its block. The backward half of a model runs later, outside of that block; it
follows the forward half only if values are tied to their device, as they are here.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
from jax.sharding import SingleDeviceSharding

from stratagem.devices import DeviceSpec, current_device, find_device, log_placement

P = ParamSpec("P")
R = TypeVar("R")


def on_device(
    fn: Callable[P, R], device: str | DeviceSpec | None = None, *, name: str | None = None
) -> Callable[P, R]:
    """Compile a part of a model for a device of this process: model parallelism by hand.

    Arguments are moved to the device, wherever they are; results stay there. Calls of several such functions
    together make a model that `jax.grad` differentiates end to end: the backward half of each part runs on the
    part's own device, gradients move back the same way, and the gradient of a parameter is where the parameter is.
    Each part is compiled separately: do not put `jax.jit` around several parts, and update the parameters of each
    part in a function of its own on the same device.

    Args:
        fn: A function of pytrees of arrays.
        device: A device of this process, such as `/gpu:1`. By default, the device of the enclosing `sg.device` blocks.
        name: The function's name in the placement log. By default, its own name.

    Raises:
        DeviceNotFoundError: This process has no such device, and soft placement is off.

    Example:
        >>> with sg.device("/gpu:0"):
        ...     lower = sg.on_device(lambda w, x: jnp.tanh(x @ w))
        >>> upper = sg.on_device(lambda w, h: ((h @ w) ** 2).mean(), "/gpu:1")
        >>> gradients = jax.grad(lambda params: upper(params["upper"], lower(params["lower"], x)))(params)
    """
    local = find_device(current_device() if device is None else device)
    sharding = SingleDeviceSharding(local.device)
    compiled = jax.jit(fn, out_shardings=sharding)
    label = str(getattr(fn, "__name__", type(fn).__name__)) if name is None else name
    log_placement(label, "Program", local.name)

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = move_to((args, kwargs), sharding)
        return compiled(*args, **kwargs)

    return call


def move_to(tree: Any, sharding: SingleDeviceSharding) -> Any:
    """Move the JAX arrays of a pytree to a device.

    `jax.device_put` is slow to find out that there is nothing to move, so it gets only the arrays that are elsewhere,
    and tracers. JAX moves NumPy arrays by itself.
    """
    leaves, structure = jax.tree.flatten(tree)
    elsewhere = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, jax.core.Tracer) or (isinstance(leaf, jax.Array) and leaf.sharding != sharding)
    ]
    if not elsewhere:
        return tree
    moved = jax.device_put([leaves[place] for place in elsewhere], sharding)
    for place, leaf in zip(elsewhere, moved, strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)
