"""What a shard file is, told by its writer in plain values: enough to read it back and to trust it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from stratagem.errors import KeepError
from stratagem.keep.fields import Field, shown
from stratagem.keep.naming import shard_of
from stratagem.keep.stored import StoredArray

_DIGEST = re.compile(r"[0-9a-f]{64}")
DIGEST_BYTES = 32
SMALLEST = 10
"""Bytes of the smallest safetensors file: a length and `{}`."""


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard file.

    Attributes:
        file: Its name in the cut's directory.
        nbytes: Its size.
        digest: BLAKE2b of all its bytes, 32 bytes in hexadecimal, as `b2sum --length 256` prints it.
        arrays: What it holds, by key.
    """

    file: str
    nbytes: int
    digest: str
    arrays: Mapping[str, StoredArray]

    def __post_init__(self) -> None:
        shard_of(self.file)
        if type(self.nbytes) is not int or self.nbytes < SMALLEST:
            raise KeepError(
                f"{self.file} is recorded with {shown(self.nbytes)} bytes; no shard has less than {SMALLEST}"
            )
        if type(self.digest) is not str or not _DIGEST.fullmatch(self.digest):
            raise KeepError(
                f"{self.file} is recorded with the digest {shown(self.digest)}; it must be "
                f"{2 * DIGEST_BYTES} digits from 0 to f"
            )

    @property
    def shard(self) -> str:
        """The shard's name: that of the file, without its ending."""
        return shard_of(self.file)

    def to_dict(self) -> dict[str, Any]:
        """The same in plain values, for JSON and for the wire."""
        arrays = {key: array.to_list() for key, array in self.arrays.items()}
        return {"file": self.file, "nbytes": self.nbytes, "digest": self.digest, "arrays": arrays}

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """What `to_dict` made, checked."""
        return cls.from_field(Field(value, "shard record"))

    @classmethod
    def from_field(cls, field: Field) -> Self:
        """The same for a part of something larger."""
        parts = field.exactly({"file", "nbytes", "digest", "arrays"})
        arrays = {key: StoredArray.from_field(array) for key, array in parts["arrays"].members().items()}
        return cls(parts["file"].text(), parts["nbytes"].whole(), parts["digest"].text(), arrays)
