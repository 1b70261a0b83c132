"""One cut: a consistent state of a run at one step, read back tensor by tensor."""

from collections.abc import Iterable
from pathlib import Path

from stratagem.errors import KeepError
from stratagem.keep.fields import shown
from stratagem.keep.manifest import Manifest, Piece, TensorEntry
from stratagem.keep.shard_file import allocate, open_shard
from stratagem.keep.shards import verify_shard
from stratagem.runtime.wire.arrays import Array


class Cut:
    """A finished cut on disk, from `Cuts.open`.

    A shard is checked against its digest once, before the first tensor is read from it.

    Attributes:
        directory: Where its files are.
        manifest: What it holds.
    """

    def __init__(self, directory: Path, manifest: Manifest, *, check_digests: bool = True) -> None:
        self.directory = directory
        self.manifest = manifest
        self._unchecked = {record.shard for record in manifest.shards} if check_digests else set()

    @property
    def step(self) -> int:
        """The global step of this state."""
        return self.manifest.step

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self.manifest.tensors)

    def read(self, name: str) -> Array:
        """A tensor as a whole: a new array, writable and aligned for XLA.

        Raises:
            KeepError: There is none of that name, or a shard that it needs is missing or damaged.
        """
        entry = self._entry(name)
        return self._read(entry, 0, entry.stored.rows)

    def read_rows(self, name: str, start: int, stop: int) -> Array:
        """Rows `start` to `stop` of a tensor; only the shards that have some of them are touched.

        Raises:
            KeepError: There are no such rows, or a shard that has some of them is missing or damaged.
        """
        entry = self._entry(name)
        if not entry.shape or not 0 <= start <= stop <= entry.shape[0]:
            raise KeepError(
                f"tensor {shown(name)} at step {self.step} is {entry.stored} and has no rows {start} to {stop}; "
                "rows count from 0 to the length of axis 0, and a scalar is read whole, with read"
            )
        return self._read(entry, start, stop)

    def verify(self, shards: Iterable[str] | None = None) -> None:
        """Read every byte and compare with the digests, now.

        Args:
            shards: Names of the shards to look at; all by default. Those of other hosts may not be here.

        Raises:
            KeepError: A shard is missing or damaged.
        """
        names = [record.shard for record in self.manifest.shards] if shards is None else shards
        for name in names:
            verify_shard(self.directory, self.manifest.record(name))
            self._unchecked.discard(name)

    def _entry(self, name: str) -> TensorEntry:
        entry = self.manifest.tensors.get(name)
        if entry is None:
            raise KeepError(f"no tensor {shown(name)} at step {self.step}; there are {shown(self.names)}")
        return entry

    def _read(self, entry: TensorEntry, start: int, stop: int) -> Array:
        result = allocate(entry.stored.with_rows(stop - start))
        for piece in entry.pieces:
            first, last = max(start, piece.start_row), min(stop, piece.stop_row)
            if first < last:
                target = result[first - start : last - start] if entry.shape else result
                self._read_piece(piece, first - piece.start_row, target)
        return result

    def _read_piece(self, piece: Piece, row: int, target: Array) -> None:
        if piece.shard in self._unchecked:
            self.verify([piece.shard])
        with open_shard(self.directory, self.manifest.record(piece.shard)) as shard:
            shard.read_rows(piece.key, row, target)
