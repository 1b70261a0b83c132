"""`on_device`: a function that always computes on one device, also when it is differentiated.

`sg.device` says where what is written in its block goes. The backward half of a model is run later, outside of
that block; it goes where the forward half went only if its values are tied to their device, as they are here.
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
    part's own device, gradients move the way back, and the gradient of a parameter is where the parameter is.
    Each part is compiled by itself: do not put `jax.jit` around several, and update the parameters of each part by
    themselves, in a function on the same device.

    Args:
        fn: A function of pytrees of arrays.
        device: A device of this process, such as `/gpu:1`; by default what the `sg.device` blocks around say.
        name: What the placement log calls it; by default the function's own name.

    Raises:
        DeviceNotFoundError: This process has no such device, and soft placement is off.

    Example:
        >>> with sg.device("/gpu:0"):
        ...     lower = sg.on_device(lambda w, x: jnp.tanh(x @ w))
        >>> upper = sg.on_device(lambda w, h: ((h @ w) ** 2).mean(), "/gpu:1")
        >>> gradients = jax.grad(lambda params: upper(params["upper"], lower(params["lower"], x)))(params)
    """
    found = find_device(current_device() if device is None else device)
    home = SingleDeviceSharding(found.device)
    compiled = jax.jit(fn, out_shardings=home)
    label = str(getattr(fn, "__name__", type(fn).__name__)) if name is None else name
    log_placement(label, "Program", found.name)

    @wraps(fn)
    def placed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = moved((args, kwargs), home)
        return compiled(*args, **kwargs)

    return placed


def moved(tree: Any, home: SingleDeviceSharding) -> Any:
    """A pytree with its arrays where a program for that device can take them.

    JAX takes its time to find that there is nothing to move, so it is asked only about arrays that are elsewhere, and
    about what stands for arrays while it traces. Those of NumPy it moves by itself.
    """
    leaves, structure = jax.tree.flatten(tree)
    away = [
        place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.Array) and _is_away(leaf, home)
    ]
    if not away:
        return tree
    for place, leaf in zip(away, jax.device_put([leaves[place] for place in away], home), strict=True):
        leaves[place] = leaf
    return jax.tree.unflatten(structure, leaves)


def _is_away(array: jax.Array, home: SingleDeviceSharding) -> bool:
    return isinstance(array, jax.core.Tracer) or array.sharding != home
