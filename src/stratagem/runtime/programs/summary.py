"""What is known of a program once it has been walked: what goes in, what comes out, how large it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from stratagem.runtime.programs.elements import BYTES_OF_DTYPE


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one input or output.

    Example:
        >>> str(TensorSpec((2, 3), "float32"))
        'float32[2,3]'
    """

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this shape and dtype."""
        count = BYTES_OF_DTYPE[self.dtype]
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class ProgramSummary:
    """Facts about a program that was found to be allowed.

    Attributes:
        content_hash: SHA-256 of the artifact, in hexadecimal.
        inputs: Flat inputs.
        outputs: Flat outputs.
        operations: Number of operations, with each call counted as often as it happens.
        constant_bytes: Size of the constants that are written out in the artifact.
        unfused_bytes: Estimated peak memory if nothing were fused; an over-estimate.
        custom_calls: Targets of the custom calls in it, sorted.
    """

    content_hash: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operations: int
    constant_bytes: int
    unfused_bytes: int
    custom_calls: tuple[str, ...]


def describe(specs: Sequence[TensorSpec], most: int = 8) -> str:
    """A short list of specs for a message."""
    shown = ", ".join(map(str, specs[:most]))
    return f"({shown}, and {len(specs) - most} more)" if len(specs) > most else f"({shown})"
