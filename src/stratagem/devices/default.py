"""JAX's default device for a block of code, left in any order.

JAX keeps the default device per thread and restores, at the end of a block, what it found at its start.
Tasks of one event loop share a thread and may leave their blocks in another order than they entered them;
then the block that comes next in the thread takes over what has to be restored, so that nothing is left behind.
"""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import jax


@dataclass(eq=False)
class DefaultDevice:
    """One block in which `device` is JAX's default; enter it once, in one thread."""

    device: "jax.Device | None"
    _context: AbstractContextManager[None] | None = None

    def enter(self) -> None:
        """Make the device the default of this thread; `None` means whatever JAX takes by itself."""
        import jax

        self._context = cast(AbstractContextManager[None], jax.default_device(self.device))
        self._context.__enter__()
        _thread.blocks.append(self)

    def is_here(self) -> bool:
        """Whether this thread entered the block and has not left it."""
        return self in _thread.blocks

    def leave(self) -> None:
        """Restore what was the default before this block, or let the next block do it."""
        blocks = _thread.blocks
        place = blocks.index(self)
        del blocks[place]
        if place < len(blocks):
            blocks[place]._context, self._context = self._context, None
        elif self._context is not None:
            self._context.__exit__(None, None, None)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.blocks: list[DefaultDevice] = []


_thread = _Thread()
