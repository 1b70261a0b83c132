"""Tensors that several callers are sent alike: copied once, into shared memory that all of them see.

Whoever is to send them copies what others have not copied yet, so nobody waits for anybody; that a piece may be
copied twice does no harm, as it is the same both times.
"""

import threading
from collections.abc import Iterable
from types import EllipsisType
from typing import TypeAlias

from stratagem.runtime.wire.arrays import Array
from stratagem.runtime.wire.layouts import NO_TENSORS, Layout
from stratagem.runtime.wire.limits import MIB
from stratagem.runtime.wire.segments import OutgoingSegment

_PIECE = 2 * MIB
Rows: TypeAlias = slice | EllipsisType
_SPARE = 1
"""Sheets to keep beside those in use."""


class Edition(list[Array]):
    """Tensors that are sent to several, and do not change meanwhile.

    Args:
        board: Where they are put up for those who share memory with this process.
        arrays: The tensors.
    """

    def __init__(self, board: "Board", arrays: Iterable[Array]) -> None:
        super().__init__(arrays)
        self.board = board


class Sheet:
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

    def __init__(self, board: "Board") -> None:
        self.board = board
        self.segment = OutgoingSegment()
        self.layout = NO_TENSORS
        self.edition: Edition | None = None
        self.readers = 0
        self._pieces: list[tuple[Array, int, Rows]] = []
        self._copied: list[bool] = []

    def show(self, edition: Edition, layout: Layout) -> None:
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

    def complete(self, edition: Edition, from_behind: bool) -> None:
        """Copy what nobody has copied: two who begin at both ends meet in the middle."""
        copied = self._copied
        numbers = range(len(copied))
        for number in reversed(numbers) if from_behind else numbers:
            if not copied[number]:
                place, index, rows = self._pieces[number]
                place[...] = edition[index][rows]
                copied[number] = True


class Board:
    """Shows editions, mostly one at a time; older ones as long as somebody may be reading them."""

    def __init__(self) -> None:
        self._sheets: list[Sheet] = []
        self._lock = threading.Lock()

    def post(self, edition: Edition, layout: Layout) -> Sheet:
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

    def _showing(self, edition: Edition, layout: Layout) -> Sheet:
        free = []
        for sheet in self._sheets:
            if sheet.edition is edition:
                return sheet
            if not sheet.readers:
                free.append(sheet)
        if not free:
            free.append(Sheet(self))
            self._sheets.append(free[0])
        for sheet in free[1 + _SPARE :]:
            self._sheets.remove(sheet)
            sheet.segment.close()
        free[0].show(edition, layout)
        return free[0]

    def release(self, sheet: Sheet) -> None:
        """One reader less."""
        with self._lock:
            sheet.readers -= 1


def _pieces(place: Array) -> list[Rows]:
    """The rows of an array in pieces of some size; of a single number, all there is."""
    if not place.ndim:
        return [...]
    rows = max(1, _PIECE * len(place) // max(1, place.nbytes))
    return [slice(start, start + rows) for start in range(0, len(place), rows)]
