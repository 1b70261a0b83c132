"""Shared memory without a name: memfds whose descriptors travel over the Unix socket.

Each direction of a connection has one segment at a time, made by its sender, reused from frame to frame,
replaced by a larger one when needed. It lives as long as a process maps it, and no longer.
"""

import fcntl
import itertools
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np

from stratagem.errors import ProtocolError
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.foreign import during_allocation, reason
from stratagem.runtime.wire.layouts import NO_TENSORS, Layout
from stratagem.runtime.wire.limits import KIB, MIB

_SMALLEST: Final = 256 * KIB
_WORTH_DROPPING: Final = 4 * MIB
_IDLE_USES: Final = 64
_NOTHING: Final[Array] = np.empty(0, np.uint8)
_NUMBERS = itertools.count(1)
_SEAL_FUTURE_WRITE: Final = 0x10  # of Linux 5.1; Python 3.11 has no name for it


class OutgoingSegment:
    """The segment that this side writes and the far side reads.

    Its size is a power of two, but memory is taken only for the part in use, before it is written: to run
    out of memory is then an error, not a signal. A large one that has long been used for little is dropped.

    Attributes:
        size: How large it is.
        number: No other segment of this process has it; 0 while there is none.
        descriptor: To be sent to those who are to see it; it stays this object's.
        layout: What it was last laid out for; to write tensors of the same layout, nothing need be reserved.
        places: Where the tensors of that layout go.
    """

    def __init__(self) -> None:
        self.size = self.number = 0
        self.descriptor: int | None = None
        self._view: Array = _NOTHING
        self._reserved = 0
        self._little_used = 0
        self.layout = NO_TENSORS
        self.places: list[Array] = []

    def reserve(self, size: int) -> None:
        """Make room for so many bytes, in a new segment if need be.

        Raises:
            LimitExceeded: There is no memory for it.
        """
        self._drop_if_idle(size)
        try:
            if size > self.size:
                self._create(max(_SMALLEST, 1 << (size - 1).bit_length()))
            if size > self._reserved and self.descriptor is not None:
                os.posix_fallocate(self.descriptor, self._reserved, size - self._reserved)
                self._reserved = size
        except OSError as error:
            self.close()
            raise during_allocation(error) from error

    def _drop_if_idle(self, size: int) -> None:
        if self._reserved < _WORTH_DROPPING or size * 4 > self._reserved:
            self._little_used = 0
            return
        self._little_used += 1
        if self._little_used >= _IDLE_USES:
            self.close()

    def _create(self, size: int) -> None:
        self.close()
        self.descriptor = os.memfd_create("stratagem", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        self._view = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        with suppress(OSError):  # an older kernel: those who see it could write to it, too
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.size, self.number = size, next(_NUMBERS)

    def lay_out(self, layout: Layout) -> None:
        """Make places for tensors, for which room was reserved."""
        # One that is used for little has to be reserved each time, so that it is dropped in the end.
        self.layout = NO_TENSORS if self._little_used else layout
        self.places = layout.within(self._view)

    def room(self, nbytes: int) -> Array:
        """The first bytes of what was reserved, to write to."""
        return self._view[:nbytes]

    def close(self) -> None:
        """Let go of the segment; its memory goes with the last view of it on either side."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self._view, self.descriptor = _NOTHING, None
        self.layout, self.places = NO_TENSORS, []
        self.size = self.number = self._reserved = self._little_used = 0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor is not None:  # of a board, which goes with what it shows
            close(self.descriptor)


class IncomingSegment:
    """The segment that the far side writes; seen here read-only.

    Attributes:
        view: All of it.
    """

    def __init__(self) -> None:
        self.view: Array = _NOTHING
        self._seen = NO_TENSORS, list[Array]()

    def adopt(self, descriptor: int, size: int, limit: int) -> None:
        """Map the segment behind a received descriptor, which is closed in any case.

        A file that could be cut short later would turn reading it into a signal that kills the process, so
        only one sealed against that is mapped.
        """
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            real_size = os.fstat(descriptor).st_size
            if not seals & fcntl.F_SEAL_SHRINK or real_size != size or not 0 < size <= limit:
                raise ProtocolError(
                    f"a descriptor of {real_size} bytes with seals {seals:#x}, announced as a segment of {size}"
                )
            # Not closed, only let go: arrays handed out earlier keep the old mapping alive.
            self.view = np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
            self._seen = NO_TENSORS, []
        except OSError as error:
            raise ProtocolError(f"a descriptor that is no shared memory: {reason(error)}") from error
        finally:
            os.close(descriptor)

    def check(self, layout: Layout) -> None:
        """Raise `ProtocolError` unless there is a segment with room for a layout."""
        if layout.end > self.view.nbytes:
            raise ProtocolError(f"tensors up to byte {layout.end} of a segment of {self.view.nbytes}")

    def tensors(self, layout: Layout) -> list[Array]:
        """The tensors of a layout that was checked; the same arrays for the same layout."""
        if self._seen[0] is not layout:
            self._seen = layout, layout.within(self.view)
        return self._seen[1]

    def close(self) -> None:
        """Let go of the mapping."""
        self.view = _NOTHING
        self._seen = NO_TENSORS, []
