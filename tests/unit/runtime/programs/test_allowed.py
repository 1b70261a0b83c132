"""The types of calls to linear algebra kernels are held to what the kernels rely on."""

import pytest

from stratagem.runtime.programs import TensorSpec
from stratagem.runtime.programs.allowed import CUSTOM_CALLS, wrong_signature


def specs(text: str) -> list[TensorSpec]:
    """`f5x3 i` is a float32[5,3] and an int32[]."""
    dtypes = {"f": "float32", "d": "float64", "c": "complex64", "i": "int32", "u": "uint32"}
    return [
        TensorSpec(tuple(map(int, filter(None, word[1:].split("x")))), dtypes[word[0]])
        for word in text.split()
    ]


def wrong(target: str, types: str, **options: str) -> str | None:
    operands, _, results = types.partition("->")
    return wrong_signature(
        target, {name: ord(value) for name, value in options.items()}, specs(operands), specs(results)
    )


@pytest.mark.parametrize(
    ("target", "types", "options"),
    [
        ("lapack_sgeqrf_ffi", "f5x3 -> f5x3 f3", {}),
        ("lapack_sgeqrf_ffi", "f7x2x5x3 -> f7x2x5x3 f7x2x3", {}),
        ("lapack_sorgqr_ffi", "f5x5 f3 -> f5x5", {}),
        ("lapack_sgesdd_ffi", "f5x3 -> f5x3 f3 f5x3 f3x3 i", {"mode": "S"}),
        ("lapack_sgesdd_ffi", "f5x3 -> f5x3 f3 f5x5 f3x3 i", {"mode": "A"}),
        ("lapack_cheevd_ffi", "c4x4 -> c4x4 f4 i", {}),
        ("lapack_sgeev_ffi", "f4x4 -> f4 f4 c4x4 c4x4 i", {}),
        ("lapack_strsm_ffi", "f4x4 f4x2 -> f4x2", {"side": "L"}),
        ("lapack_strsm_ffi", "f2x2 f4x2 -> f4x2", {"side": "R"}),
        ("lapack_sgtsv_ffi", "f4 f4 f4 f4x2 -> f4 f4 f4 f4x2 i", {}),
        ("lapack_sgees_ffi", "f4x4 -> f4x4 f4x4 f4 f4 i i", {"sort": "N", "mode": "V"}),
        ("cusolver_getrf_ffi", "d5x3 -> d5x3 i3 i", {}),
        ("cu_lu_pivots_to_permutation", "i3 -> i5", {}),
        ("cu_threefry2x32_ffi", "u8 u8 u8 u8 -> u8 u8", {}),
        ("Eigh", "f4x4 -> f4x4 f4", {}),
        ("AllocateBuffer", "-> f4", {}),
    ],
)
def test_right_ones(target: str, types: str, options: dict[str, str]) -> None:
    assert wrong(target, types, **options) is None


@pytest.mark.parametrize(
    ("target", "types", "options"),
    [
        ("lapack_sgeqrf_ffi", "f5x3 -> f1x1 f3", {}),
        ("lapack_sgeqrf_ffi", "f5x3 -> f5x3 f2", {}),
        ("lapack_sgeqrf_ffi", "f5x3 -> f5x3", {}),
        ("lapack_sgeqrf_ffi", "f2x5x3 -> f1x5x3 f2x3", {}),
        ("lapack_sgeqrf_ffi", "d5x3 -> d5x3 d3", {}),
        ("lapack_sgeqrf_ffi", "f5 -> f5 f5", {}),
        ("lapack_sgeqrf_ffi", "-> f5x3 f3", {}),
        ("lapack_sorgqr_ffi", "f3x5 f3 -> f3x5", {}),
        ("lapack_sorgqr_ffi", "f5x3 f4 -> f5x3", {}),
        ("lapack_sgesdd_ffi", "f5x3 -> f5x3 f3 f5x3 f3x3 i", {"mode": "A"}),
        ("lapack_sgesdd_ffi", "f5x3 -> f5x3 f3 f5x5 f3x3 i", {"mode": "O"}),
        ("lapack_sgesdd_ffi", "f5x3 -> f5x3 f3 f5x5 f3x3 i", {}),
        ("lapack_spotrf_ffi", "f5x3 -> f5x3 i", {}),
        ("lapack_strsm_ffi", "f2x2 f4x2 -> f4x2", {"side": "L"}),
        ("lapack_strsm_ffi", "f4x4 f4x2 -> f4x2", {"side": "X"}),
        ("lapack_sgees_ffi", "f4x4 -> f4x4 f4x4 f4 f4 i i", {"sort": "S"}),
        ("cu_lu_pivots_to_permutation", "i5 -> i3", {}),
        ("cu_threefry2x32_ffi", "u8 u8 u8 u8 -> u4 u8", {}),
    ],
)
def test_wrong_ones(target: str, types: str, options: dict[str, str]) -> None:
    assert wrong(target, types, **options)


@pytest.mark.parametrize("target", sorted(set().union(*CUSTOM_CALLS.values())))
def test_every_allowed_target_has_a_rule(target: str) -> None:
    assert wrong(target, "c9x9x9 -> c9", mode="S", side="L", sort="N")
