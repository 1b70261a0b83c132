"""Facts about a program: the types of its inputs and outputs, its size, and the limits on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stratagem.errors import LimitExceeded
from stratagem.runtime.memory import available_memory


class Element(NamedTuple):
    """One element type: NumPy's name, StableHLO's, the name in a `jax.export` container, bytes in memory."""

    dtype: str
    stablehlo: str
    container: str
    nbytes: int


# Types of less than a byte take a byte each in XLA's memory on the host, which is what is counted.
ELEMENTS = (
    Element("bool", "i1", "bool", 1),
    Element("int4", "i4", "i4", 1),
    Element("int8", "i8", "i8", 1),
    Element("int16", "i16", "i16", 2),
    Element("int32", "i32", "i32", 4),
    Element("int64", "i64", "i64", 8),
    Element("uint4", "ui4", "ui4", 1),
    Element("uint8", "ui8", "ui8", 1),
    Element("uint16", "ui16", "ui16", 2),
    Element("uint32", "ui32", "ui32", 4),
    Element("uint64", "ui64", "ui64", 8),
    Element("float16", "f16", "f16", 2),
    Element("bfloat16", "bf16", "bf16", 2),
    Element("float32", "f32", "f32", 4),
    Element("float64", "f64", "f64", 8),
    Element("complex64", "complex<f32>", "c64", 8),
    Element("complex128", "complex<f64>", "c128", 16),
    Element("float8_e3m4", "f8E3M4", "f8_e3m4", 1),
    Element("float8_e4m3", "f8E4M3", "f8_e4m3", 1),
    Element("float8_e4m3fn", "f8E4M3FN", "f8_e4m3fn", 1),
    Element("float8_e4m3fnuz", "f8E4M3FNUZ", "f8_e4m3fnuz", 1),
    Element("float8_e4m3b11fnuz", "f8E4M3B11FNUZ", "f8_e4m3b11fnuz", 1),
    Element("float8_e5m2", "f8E5M2", "f8_e5m2", 1),
    Element("float8_e5m2fnuz", "f8E5M2FNUZ", "f8_e5m2fnuz", 1),
    Element("float8_e8m0fnu", "f8E8M0FNU", "f8_e8m0fnu", 1),
    Element("float4_e2m1fn", "f4E2M1FN", "f4_e2m1fn", 1),
)

DTYPE_OF_STABLEHLO = {element.stablehlo: element.dtype for element in ELEMENTS}
DTYPE_OF_CONTAINER = {element.container: element.dtype for element in ELEMENTS}
BYTES_OF_DTYPE = {element.dtype: element.nbytes for element in ELEMENTS}


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
    """Facts about a program that is allowed.

    Attributes:
        content_hash: SHA-256 of the artifact, in hexadecimal.
        inputs: Flat inputs.
        outputs: Flat outputs.
        operations: Number of operations, with each call counted as often as it happens.
        constant_bytes: Size of the constants that are written out in the artifact.
        unfused_bytes: Estimated peak memory if nothing were fused; an overestimate.
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
    """Return a short list of specs for a message."""
    shown = ", ".join(map(str, specs[:most]))
    return f"({shown}, and {len(specs) - most} more)" if len(specs) > most else f"({shown})"


MIB = 1 << 20


@dataclass(frozen=True)
class ProgramLimits:
    """Bounds on a program; a program that exceeds one of them is refused.

    Memory is bounded twice. Before compilation, `unfused_bytes` bounds an estimate that counts each intermediate result as if
    nothing were fused; XLA fuses much of it away, so the default is generous and only stops absurd programs. After compilation
    and before the first call, `memory_bytes` bounds the memory that XLA reports for the program.

    Example:
        >>> ProgramLimits(operations=1000).operations
        1000

    Attributes:
        artifact_bytes: Size of the artifact.
        constant_bytes: Sum of the constants written out in it; those made of one repeated value do not count.
        operations: Operations, with each call counted as often as it happens.
        inputs: Number of inputs.
        outputs: Number of outputs.
        unfused_bytes: Estimated peak memory without fusion.
        memory_bytes: Peak memory of the compiled program: arguments, results and temporaries.
    """

    artifact_bytes: int = 64 * MIB
    constant_bytes: int = 64 * MIB
    operations: int = 200_000
    inputs: int = 16_384
    outputs: int = 16_384
    unfused_bytes: int = field(default_factory=lambda: 8 * available_memory())
    memory_bytes: int = field(default_factory=available_memory)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise LimitExceeded(f"ProgramLimits({name}={value!r}): a limit is a whole number, 0 or more")
