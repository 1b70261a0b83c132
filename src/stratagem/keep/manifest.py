"""The manifest of a snapshot: which shards it has, and which pieces of them make up each tensor.

It is written last, and makes the snapshot valid. It comes from outside when it is read, so everything in it is
checked, and it carries a digest of itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Self

from stratagem.errors import KeepError
from stratagem.keep.checked_json import JsonField, compact, excerpt, parse_json, plain
from stratagem.keep.disk import LAST_STEP
from stratagem.keep.records import DIGEST_BYTES, ShardRecord, StoredArray

VERSION: Final = 1
_FORMAT: Final = "stratagem cut"
"""Stands in every manifest: files of earlier releases must stay readable."""


@dataclass(frozen=True)
class TensorPiece:
    """Rows `start_row` to `stop_row` of a tensor: one array of one shard, all of it."""

    shard: str
    key: str
    start_row: int
    stop_row: int

    def to_list(self) -> list[Any]:
        """Return plain values."""
        return [self.shard, self.key, self.start_row, self.stop_row]

    @classmethod
    def from_field(cls, field: JsonField) -> Self:
        """Read the result of `to_list`, checked."""
        parts = field.items()
        if len(parts) != 4:
            raise field.error("[shard, key, start_row, stop_row]")
        shard, key, start, stop = parts
        return cls(shard.text(), key.text(), start.whole(), stop.whole())


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a snapshot, whole in one shard or spread over several by rows (axis 0).

    Attributes:
        shape: Its shape as a whole.
        dtype: The name of its dtype.
        pieces: Its pieces, in the order of rows. A scalar is one row.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: Sequence[TensorPiece]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.stored.shape)
        ordered = tuple(sorted(self.pieces, key=lambda piece: (piece.start_row, piece.stop_row)))
        object.__setattr__(self, "pieces", ordered)

    @classmethod
    def join(cls, parts: Iterable[tuple[ShardRecord, str]]) -> Self:
        """Return the tensor that arrays of shards make up, stacked by rows in this order.

        Example:
            >>> top = ShardRecord("ps-0.safetensors", 100, "0" * 64, {"w": StoredArray((392, 5), "float32")})
            >>> bottom = ShardRecord("ps-1.safetensors", 100, "0" * 64, {"w": StoredArray((392, 5), "float32")})
            >>> TensorEntry.join([(top, "w"), (bottom, "w")]).shape
            (784, 5)
        """
        pieces = []
        whole: StoredArray | None = None
        row = 0
        for record, key in parts:
            if key not in record.arrays:
                raise KeepError(
                    f"{record.file} has no array {excerpt(key)}; it has {excerpt(sorted(record.arrays))}"
                )
            array = record.arrays[key]
            if whole is not None and (not array.shape or array.with_rows(0) != whole.with_rows(0)):
                raise KeepError(
                    f"{excerpt(key)} of {record.file} is {array} and cannot be stacked under {whole}; parts of a "
                    "tensor have the same dtype and, but for axis 0, the same shape"
                )
            pieces.append(TensorPiece(record.shard, key, row, row + array.rows))
            row += array.rows
            whole = array.with_rows(row)
        if whole is None:
            raise KeepError("a tensor with no parts; give at least one shard and key")
        return cls(whole.shape, whole.dtype, pieces)

    @property
    def stored(self) -> StoredArray:
        """The shape and dtype of the whole tensor."""
        return StoredArray(tuple(self.shape), self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        pieces = [piece.to_list() for piece in self.pieces]
        return {"shape": list(self.shape), "dtype": self.dtype, "pieces": pieces}

    @classmethod
    def from_field(cls, field: JsonField) -> Self:
        """Read the result of `to_dict`, checked."""
        parts = field.exactly({"shape", "dtype", "pieces"})
        shape = tuple(length.whole() for length in parts["shape"].items())
        pieces = [TensorPiece.from_field(piece) for piece in parts["pieces"].items()]
        return cls(shape, parts["dtype"].text(), pieces)


@dataclass(frozen=True)
class Manifest:
    """The contents of a snapshot.

    Attributes:
        step: The global step of this state.
        shards: The files, as their writers recorded them.
        tensors: The tensors by name; their order is kept.
        meta: Whatever else belongs to this state, in plain values: seeds, the updates that were applied, the job.
        version: The version of this format.
    """

    step: int
    shards: Sequence[ShardRecord]
    tensors: Mapping[str, TensorEntry]
    meta: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        check_step(self.step)
        object.__setattr__(self, "shards", tuple(self.shards))
        object.__setattr__(self, "tensors", dict(self.tensors))
        object.__setattr__(self, "meta", plain(dict(self.meta), "meta"))
        records: dict[str, ShardRecord] = {}
        for record in self.shards:
            if record.shard in records:
                raise KeepError(f"the shard {record.shard!r} is recorded twice; each has its own name")
            records[record.shard] = record
        for name, entry in self.tensors.items():
            _check_entry(name, entry, records)

    def record(self, shard: str) -> ShardRecord:
        """Return the record of a shard."""
        for record in self.shards:
            if record.shard == shard:
                return record
        raise KeepError(
            f"no shard {excerpt(shard)} at step {self.step}; there are {excerpt(self._shard_names())}"
        )

    def _shard_names(self) -> list[str]:
        return [record.shard for record in self.shards]

    def to_bytes(self) -> bytes:
        """Return the contents of the manifest's file."""
        content = {
            "format": _FORMAT,
            "version": self.version,
            "step": self.step,
            "shards": [record.to_dict() for record in self.shards],
            "tensors": {name: entry.to_dict() for name, entry in self.tensors.items()},
            "meta": self.meta,
        }
        digest = blake2b(compact(content), digest_size=DIGEST_BYTES).hexdigest()
        return compact({**content, "digest": digest}) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the contents of a manifest's file.

        Raises:
            KeepError: It is malformed, or was changed after it was written.
        """
        whole = JsonField(parse_json(data), "manifest")
        members = whole.members()
        if "format" not in members or members["format"].value != _FORMAT:
            raise KeepError(f"it is not the manifest of a snapshot: its format is not {_FORMAT!r}")
        _check_version(members["version"].whole() if "version" in members else None)
        parts = whole.exactly({"format", "version", "step", "shards", "tensors", "meta", "digest"})
        parts["meta"].members()
        manifest = cls(
            parts["step"].whole(),
            [ShardRecord.from_field(shard) for shard in parts["shards"].items()],
            {name: TensorEntry.from_field(entry) for name, entry in parts["tensors"].members().items()},
            parts["meta"].value,
        )
        if manifest.to_bytes() != data:
            raise KeepError(
                f"it does not agree with its own digest, {excerpt(parts['digest'].value)}: it was changed after "
                "it was written"
            )
        return manifest


def check_step(step: object) -> None:
    """Raise `KeepError` unless a snapshot may be at this step."""
    if type(step) is not int or not 0 <= step <= LAST_STEP:
        raise KeepError(
            f"a snapshot cannot be at step {excerpt(step)}; steps are Python integers from 0 to {LAST_STEP}, such as "
            "int(state.step)"
        )


def _check_version(version: object) -> None:
    """Raise `KeepError` unless this release reads and writes this version."""
    if version != VERSION or type(version) is not int:
        raise KeepError(
            f"the manifest's version is {excerpt(version)}; this release of Stratagem reads version {VERSION}: use "
            "the release that wrote it, or a newer one"
        )


def _check_entry(name: str, entry: TensorEntry, records: Mapping[str, ShardRecord]) -> None:
    """Raise `KeepError` unless the pieces exist and make up the tensor, each row once."""
    whole = entry.stored
    row = 0
    for piece in entry.pieces:
        where = f"tensor {excerpt(name)}, {whole}: rows {piece.start_row} to {piece.stop_row}"
        if piece.shard not in records:
            raise KeepError(
                f"{where} are in shard {excerpt(piece.shard)}; there are {excerpt(sorted(records))}"
            )
        array = records[piece.shard].arrays.get(piece.key)
        if array is None:
            raise KeepError(f"{where} are in {excerpt(piece.key)}, which shard {piece.shard!r} does not have")
        if piece.start_row != row:
            wrong = "overlap with those before" if piece.start_row < row else "leave a gap before them"
            raise KeepError(f"{where} {wrong}; the next row is {row}")
        fits = piece.stop_row - piece.start_row == array.rows and bool(whole.shape) == bool(array.shape)
        if not fits or array != whole.with_rows(array.rows):
            raise KeepError(f"{where} are in {excerpt(piece.key)} of shard {piece.shard!r}, which is {array}")
        row = piece.stop_row
    if row != whole.rows or not entry.pieces:
        raise KeepError(f"tensor {excerpt(name)}, {whole}: its pieces end at row {row} of {whole.rows}")
