"""Shared memory without a name: memfds whose descriptors travel over the Unix socket.

Each direction of a connection has one segment at a time, made by its sender, reused from frame to frame,
replaced by a larger one when needed. It lives as long as a process maps it, and no longer.


Arrays of shared memory that are lent out: when the last of them is gone, their connection may be used again.

Tensors that several callers are sent alike: copied once, into shared memory that all of them see.

Whoever is to send them copies what others have not copied yet, so nobody waits for anybody; that a piece may be
copied twice does no harm, as it is the same both times.
"""

import fcntl
import itertools
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import EllipsisType
from typing import Any, Final, TypeAlias

import numpy as np

from stratagem.errors import ProtocolError
from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.error_translation import during_allocation, reason
from stratagem.runtime.wire.frames import NO_TENSORS, FrameLayout
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

    def lay_out(self, layout: FrameLayout) -> None:
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

    def check(self, layout: FrameLayout) -> None:
        """Raise `ProtocolError` unless there is a segment with room for a layout."""
        if layout.end > self.view.nbytes:
            raise ProtocolError(f"tensors up to byte {layout.end} of a segment of {self.view.nbytes}")

    def tensors(self, layout: FrameLayout) -> list[Array]:
        """The tensors of a layout that was checked; the same arrays for the same layout."""
        if self._seen[0] is not layout:
            self._seen = layout, layout.within(self.view)
        return self._seen[1]

    def close(self) -> None:
        """Let go of the mapping."""
        self.view = _NOTHING
        self._seen = NO_TENSORS, []


class Lease:
    """Counts what is lent, by Python's own references: views of views, and what JAX reads in place, count too.

    Args:
        over: Called when nothing that was lent is in use any more, from whatever thread lets go of the last.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over

    def lent(self, array: Array) -> Array:
        """The same bytes, which keep the lease alive for as long as they or any view of them live.

        Args:
            array: All of a mapping, as `np.frombuffer` sees it.
        """
        # Of the mapping, not of the array: NumPy takes for the owner of a view's memory the last in a row of plain
        # arrays, and what it passes over may go.
        loan = _Loan(array.shape, array.dtype, array.base)
        loan.lease = self
        return loan

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():  # the modules that a pool needs are gone by then, and nobody calls any more
            self._over()


class _Loan(np.ndarray[Any, np.dtype[Any]]):
    """What NumPy takes for the owner of lent memory."""

    lease: Lease


_PIECE = 2 * MIB
Rows: TypeAlias = slice | EllipsisType
_SPARE = 1
"""Sheets to keep beside those in use."""


class Broadcast(list[Array]):
    """Tensors that are sent to several, and do not change meanwhile.

    Args:
        board: Where they are put up for those who share memory with this process.
        arrays: The tensors.
    """

    def __init__(self, board: "BroadcastBuffers", arrays: Iterable[Array]) -> None:
        super().__init__(arrays)
        self.board = board


class BroadcastBuffer:
    """A segment with the tensors of one edition, and those who may be reading it.

    Args:
        board: The board that it belongs to.

    Attributes:
        board: See above.
        segment: The segment.
        layout: How they lie in it.
        edition: What it shows.
        readers: How many were told of it, and have not come back since.
    """

    def __init__(self, board: "BroadcastBuffers") -> None:
        self.board = board
        self.segment = OutgoingSegment()
        self.layout = NO_TENSORS
        self.edition: Broadcast | None = None
        self.readers = 0
        self._pieces: list[tuple[Array, int, Rows]] = []
        self._copied: list[bool] = []

    def show(self, edition: Broadcast, layout: FrameLayout) -> None:
        """Make room for an edition; raises `LimitExceeded` if there is none."""
        self.edition = None
        if self.segment.layout.specs != layout.specs:
            self.segment.reserve(layout.end)
            self.segment.lay_out(layout)
            self.layout = layout
            self._pieces = [
                (place[rows], index, rows)
                for index, place in enumerate(self.segment.places)
                for rows in _pieces(place)
            ]
        self.edition = edition
        self._copied = [False] * len(self._pieces)

    def complete(self, edition: Broadcast, from_behind: bool) -> None:
        """Copy what nobody has copied: two who begin at both ends meet in the middle."""
        copied = self._copied
        numbers = range(len(copied))
        for number in reversed(numbers) if from_behind else numbers:
            if not copied[number]:
                place, index, rows = self._pieces[number]
                place[...] = edition[index][rows]
                copied[number] = True


class BroadcastBuffers:
    """Shows editions, mostly one at a time; older ones as long as somebody may be reading them."""

    def __init__(self) -> None:
        self._sheets: list[BroadcastBuffer] = []
        self._lock = threading.Lock()

    def post(self, edition: Broadcast, layout: FrameLayout) -> BroadcastBuffer:
        """A sheet that shows an edition to one reader more, who has to be taken off it with `release`.

        Args:
            edition: The tensors, which must not change before this returns.
            layout: How to lay them out in a segment.

        Raises:
            LimitExceeded: There is no memory for it.
        """
        with self._lock:
            sheet = self._showing(edition, layout)
            is_second = sheet.readers % 2 == 1
            sheet.readers += 1
        sheet.complete(edition, from_behind=is_second)
        return sheet

    def _showing(self, edition: Broadcast, layout: FrameLayout) -> BroadcastBuffer:
        free = []
        for sheet in self._sheets:
            if sheet.edition is edition:
                return sheet
            if not sheet.readers:
                free.append(sheet)
        if not free:
            free.append(BroadcastBuffer(self))
            self._sheets.append(free[0])
        for sheet in free[1 + _SPARE :]:
            self._sheets.remove(sheet)
            sheet.segment.close()
        free[0].show(edition, layout)
        return free[0]

    def release(self, sheet: BroadcastBuffer) -> None:
        """One reader less."""
        with self._lock:
            sheet.readers -= 1


def _pieces(place: Array) -> list[Rows]:
    """The rows of an array in pieces of some size; of a single number, all there is."""
    if not place.ndim:
        return [...]
    rows = max(1, _PIECE * len(place) // max(1, place.nbytes))
    return [slice(start, start + rows) for start in range(0, len(place), rows)]
