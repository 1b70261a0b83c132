"""The operations and custom calls that a shipped program may contain; all others are refused.

What is here computes, on one device, on arrays of fixed shape. What is not here moves data past the
program's inputs and outputs (infeed, outfeed, send, recv, callbacks), talks to other devices
(collectives), or makes arrays of a size that only shows at run time (dynamic shapes).
"""

STRUCTURE = frozenset({"builtin.module", "func.func", "func.call", "func.return", "stablehlo.return"})

_STABLEHLO = """
    abs add and atan2 batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert
    broadcast_in_dim case cbrt ceil cholesky clamp compare complex composite concatenate constant convert
    convolution cosine count_leading_zeros custom_call divide dot_general dynamic_slice
    dynamic_update_slice exponential exponential_minus_one fft floor gather if imag iota is_finite log
    log_plus_one logistic map maximum minimum multiply negate not optimization_barrier or pad popcnt power
    real reduce reduce_precision reduce_window remainder reshape reverse rng rng_bit_generator
    round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter shift_left
    shift_right_arithmetic shift_right_logical sign sine slice sort sqrt subtract tan tanh transpose
    triangular_solve while xor
"""
OPERATIONS = STRUCTURE | {f"stablehlo.{name}" for name in _STABLEHLO.split()}

_LAPACK = """
    spotrf dpotrf cpotrf zpotrf sgeqrf dgeqrf cgeqrf zgeqrf sorgqr dorgqr cungqr zungqr
    ssyevd dsyevd cheevd zheevd sgeev dgeev cgeev zgeev sgesdd dgesdd cgesdd zgesdd
    sgetrf dgetrf cgetrf zgetrf ssytrd dsytrd chetrd zhetrd sgehrd dgehrd cgehrd zgehrd
    sgees dgees cgees zgees strsm dtrsm ctrsm ztrsm sgtsv dgtsv cgtsv zgtsv
"""

CUSTOM_CALLS: dict[str, frozenset[str]] = {
    "cpu": frozenset(f"lapack_{name}_ffi" for name in _LAPACK.split()),
    "cuda": frozenset(
        {
            f"cusolver_{name}_ffi"
            for name in ["getrf", "geqrf", "orgqr", "potrf", "syevd", "gesvd", "gesvdj", "sytrd"]
        }
        | {"cu_lu_pivots_to_permutation", "cusparse_gtsv2_ffi", "cu_threefry2x32_ffi"}
        | {"AllocateBuffer"}
    ),
    "rocm": frozenset(
        {
            f"hipsolver_{name}_ffi"
            for name in ["getrf", "geqrf", "orgqr", "potrf", "syevd", "gesvd", "gesvdj", "gesdd", "sytrd"]
        }
        | {"hip_lu_pivots_to_permutation", "hip_threefry2x32_ffi"}
        | {"AllocateBuffer"}
    ),
    "tpu": frozenset(
        {"Eigh", "Qr", "ProductOfElementaryHouseholderReflectors", "LuDecomposition"} | {"AllocateBuffer"}
    ),
}
"""Targets by platform: linear algebra and random bits, from those that `jax.export` calls stable.

Not ApproxTopK: XLA's own expansion of it crashes when its operands come in another order.
"""
