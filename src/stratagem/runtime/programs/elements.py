"""Element types that may cross the wire in a program, under the names that each party has for them."""

from typing import NamedTuple


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
