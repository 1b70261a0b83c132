"""`device`: the block that says where things go, and `current_device`, which returns what the blocks around say.

Blocks nest by merging, the inner one's fields winning. They are kept in a context variable: a thread starts
with none, a task of an event loop with those of its creator.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from stratagem.devices.device_spec import DeviceSpec, as_spec
from stratagem.devices.local import find_device, is_local
from stratagem.errors import ConfigurationError, DeviceSpecError

if TYPE_CHECKING:
    import jax


@runtime_checkable
class ContextualChooser(Protocol):
    """A chooser that takes into account what the blocks inside its own one say, and places programs too."""

    def place(self, variable: object, inner: DeviceSpec) -> str:
        """Return the device for a variable, or for a program if it is `None`, within what `inner` says, which wins."""
        ...


Chooser = Callable[[Any], str | DeviceSpec | None] | ContextualChooser
"""Takes a variable, returns the device that it shall live on."""


@dataclass(eq=False)
class DefaultDevice:
    """One block in which `device` is JAX's default device; enter it once, in one thread.

    JAX keeps the default device per thread and restores, at the end of a block, the one at its start. Tasks of one
    event loop share a thread and may leave their blocks in another order than they entered them; then the block that
    comes next in the thread takes over what has to be restored, so that nothing is left behind.
    """

    device: "jax.Device | None"
    _context: AbstractContextManager[None] | None = None

    def enter(self) -> None:
        """Make the device the default of this thread; `None` means whatever JAX takes by itself."""
        import jax

        self._context = cast(AbstractContextManager[None], jax.default_device(self.device))
        self._context.__enter__()
        _thread.blocks.append(self)

    def is_here(self) -> bool:
        """Return whether this thread entered the block and has not left it."""
        return self in _thread.blocks

    def leave(self) -> None:
        """Restore the default before this block, or let the next block do it."""
        blocks = _thread.blocks
        index = blocks.index(self)
        del blocks[index]
        if index < len(blocks):
            blocks[index]._context, self._context = self._context, None
        elif self._context is not None:
            self._context.__exit__(None, None, None)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.blocks: list[DefaultDevice] = []


_thread = _Thread()


@dataclass(frozen=True)
class _Frame:
    """One entered block; `outer` is the one around it."""

    scope: "DeviceScope"
    outer: "_Frame | None"
    default: DefaultDevice | None


_innermost: ContextVar[_Frame | None] = ContextVar("stratagem_device", default=None)


@dataclass(frozen=True)
class DeviceScope:
    """A block made by `device`; it may be entered again, also inside itself and from many threads."""

    target: DeviceSpec | Chooser | None

    def __enter__(self) -> DeviceSpec:
        """Enter the block; return the device that applies inside it."""
        outer = _innermost.get()
        spec = _merge(_Frame(self, outer, None), None)
        default = self._default(spec)
        if default is not None:
            default.enter()
        _innermost.set(_Frame(self, outer, default))
        return spec

    def __exit__(self, *_: object) -> None:
        """Leave the block."""
        frame = _innermost.get()
        if frame is None or frame.scope is not self or not (frame.default is None or frame.default.is_here()):
            raise ConfigurationError(
                f"the block device({self.target!r}) is left in another thread, in another task, or in another "
                "order than it was entered; use `with sg.device(…):` around code of one function"
            )
        _innermost.set(frame.outer)
        if frame.default is not None:
            frame.default.leave()

    def _default(self, spec: DeviceSpec) -> DefaultDevice | None:
        """Return the change to JAX's own placement that entering this block makes, if any."""
        if self.target is None:
            return DefaultDevice(None)
        if not isinstance(self.target, DeviceSpec) or not is_local(spec) or spec.device_type is None:
            return None
        return DefaultDevice(find_device(spec).device)


def device(target: str | DeviceSpec | Chooser | None) -> DeviceScope:
    """Say where the variables and computations of a `with` block go.

    A device of this process (`/gpu:1`, `/job:localhost/cpu:0`) becomes JAX's default device in the block. A
    device of another task (`/job:ps/task:0`) leaves JAX as it is; a Session and the strategies obey it.
    JAX keeps its default per thread: do not `await` in a block that names a local device, and enter the
    block inside the function that you give to another thread.

    Args:
        target: A device string, a `DeviceSpec`, a function from a variable to a device string (see
            `replica_device_setter`), or `None`, which undoes all the blocks around.

    Returns:
        A context manager, to be used as often as you like.

    Raises:
        DeviceSpecError: `target` is not a device.
        DeviceNotFoundError: When the block is entered: this process lacks the device, and soft placement is off.

    Example:
        >>> with device("/job:ps"), device("/task:1/cpu:0") as merged:
        ...     print(merged)
        /job:ps/task:1/device:CPU:0
    """
    if isinstance(target, str):
        return DeviceScope(DeviceSpec.from_string(target))
    if target is None or isinstance(target, DeviceSpec | ContextualChooser) or callable(target):
        return DeviceScope(target)
    raise DeviceSpecError(
        f"device() got {target!r}; it takes a device string such as '/gpu:0', a DeviceSpec, a function from a "
        "variable to a device string, or None"
    )


def current_device(variable: object = None) -> DeviceSpec:
    """Return what the blocks around say about the place of a variable, or of a program if none is given.

    Functions in `device` blocks are asked about variables; ask once per variable, since some of them count.

    Example:
        >>> with device("/job:worker/task:1"):
        ...     current_device()
        DeviceSpec(job='worker', task=1)
    """
    return _merge(_innermost.get(), variable)


def _merge(frame: _Frame | None, variable: object) -> DeviceSpec:
    """Merge from the innermost block outwards: an outer block does not overrule an inner one."""
    inner = DeviceSpec()
    while frame is not None and frame.scope.target is not None:
        target = frame.scope.target
        if isinstance(target, DeviceSpec):
            inner = target.make_merged_spec(inner)
        else:
            inner = _ask(target, variable, inner).make_merged_spec(inner)
        frame = frame.outer
    return inner


def _ask(chooser: Chooser, variable: object, inner: DeviceSpec) -> DeviceSpec:
    if isinstance(chooser, ContextualChooser):
        return as_spec(chooser.place(variable, inner))
    chosen = None if variable is None else chooser(variable)
    if chosen is None:
        return DeviceSpec()
    try:
        return as_spec(chosen)
    except DeviceSpecError as error:
        raise DeviceSpecError(
            f"the function {chooser!r} in a device block gave {chosen!r} for {variable!r}; it has to give a "
            f"device string such as '/job:ps/task:0', a DeviceSpec, or None: {error}"
        ) from error
