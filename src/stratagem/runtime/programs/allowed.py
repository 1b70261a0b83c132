"""The operations and custom calls that a shipped program may contain; all others are refused.

Allowed operations compute, on one device, on arrays of fixed shape. The others move data past the program's inputs and
outputs (infeed, outfeed, send, recv, callbacks), talk to other devices (collectives), or make arrays of a size that only
shows at run time (dynamic shapes).

The kernels behind custom calls rely on shapes that they do not check: a LAPACK kernel writes as much as its first operand
says into whatever buffers it is given, and a factorisation of 3000 rows "into" one element overwrites the heap. So each
call's types must follow the kernel's rule. A rule reads `operands -> results`, each tensor as `type:dimensions`. Types: `A`
that of the first operand, `R` its real part's, `C` its complex counterpart, `I` int32, `U` uint32. Dimensions are letters,
bound where they first appear; `k` is min(m, n) and `p` is n - 1. All tensors of a call share leading batch dimensions.
"""

from collections.abc import Mapping, Sequence

from stratagem.runtime.programs.summary import TensorSpec, describe

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
"""Targets by platform: linear algebra and random bits, among those that `jax.export` calls stable.

ApproxTopK is not allowed: XLA's own expansion of it crashes when its operands come in another order.
"""


_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPLEX = {"float32": "complex64", "float64": "complex128"}
_DTYPE_OF_PREFIX = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}

_SVD_THIN = "A:mn -> A:mn R:k A:mk A:kn I:"
_SVD_FULL = "A:mn -> A:mn R:k A:mm A:nn I:"
_QR = "A:mn -> A:mn A:k"
_HOUSEHOLDER = "A:mn A:j -> A:mn"

RULES: dict[str, tuple[str, ...]] = {
    "potrf": ("A:nn -> A:nn I:",),
    "geqrf": (_QR,),
    "orgqr": (_HOUSEHOLDER,),
    "ungqr": (_HOUSEHOLDER,),
    "syevd": ("A:nn -> A:nn R:n I:",),
    "heevd": ("A:nn -> A:nn R:n I:",),
    "geev": ("A:nn -> R:n R:n C:nn C:nn I:",),
    "geev complex": ("A:nn -> A:n A:nn A:nn I:",),
    "gesdd": (_SVD_FULL,),
    "gesdd thin": (_SVD_THIN,),
    # The GPU's kernels have an attribute that says which of these is wanted, and check it.
    "gesvd": (_SVD_FULL, _SVD_THIN),
    "gesvdj": (_SVD_FULL, _SVD_THIN, "A:mn -> A:mn R:k A:mk A:nk I:"),
    "getrf": ("A:mn -> A:mn I:k I:",),
    "sytrd": ("A:nn -> A:nn R:n R:p A:p I:",),
    "hetrd": ("A:nn -> A:nn R:n R:p A:p I:",),
    "gehrd": ("A:nn -> A:nn A:p I:",),
    "gees": ("A:nn -> A:nn A:nn A:n A:n I: I:",),
    "gees complex": ("A:nn -> A:nn A:nn A:n I: I:",),
    "trsm left": ("A:mm A:mn -> A:mn",),
    "trsm right": ("A:nn A:mn -> A:mn",),
    "gtsv": ("A:n A:n A:n A:nr -> A:n A:n A:n A:nr I:",),
    "gtsv2": ("A:n A:n A:n A:nr -> A:nr",),
    "pivots": ("I:j -> I:l",),
    "threefry2x32": ("U: U: U: U: -> U: U:",),
    "Qr": (_QR,),
    "ProductOfElementaryHouseholderReflectors": (_HOUSEHOLDER,),
    "Eigh": ("A:nn -> A:nn R:n",),
    "LuDecomposition": ("A:mn -> A:mn I:k I:m",),
}


def wrong_signature(
    target: str, options: Mapping[str, int], operands: Sequence[TensorSpec], results: Sequence[TensorSpec]
) -> str | None:
    """Return what is wrong with the types of an allowed custom call, or `None` if nothing is.

    Args:
        target: Name of the kernel.
        options: The kernel's attributes that are integers (LAPACK's letters are integers too).
        operands: Types of the operands.
        results: Types of the results.
    """
    if target == "AllocateBuffer":
        return None if not operands and len(results) == 1 else "it takes nothing and returns one array"
    lapack = target.startswith("lapack_")
    name = target.removeprefix("lapack_").removesuffix("_ffi")
    if lapack:
        dtype, name = _DTYPE_OF_PREFIX[name[0]], name[1:]
        if not operands or operands[0].dtype != dtype:
            return f"its first operand must be {dtype}, and the operands are {describe(operands)}"
    elif "lu_pivots" in name:
        name = "pivots"
    elif "_" in name:
        name = name.split("_", 1)[1]
    if lapack and name in {"gesdd", "trsm", "gees", "geev"}:
        wrong, name = _by_option(name, options, operands[0].dtype)
        if wrong:
            return wrong
    if any(_follows(rule, operands, results) for rule in RULES[name]):
        return None
    return f"{describe(operands)} -> {describe(results)} is not of the form {' or '.join(RULES[name])}"


def _by_option(name: str, options: Mapping[str, int], dtype: str) -> tuple[str | None, str]:
    """Return what is wrong, and the name of the rule, for a kernel whose rule depends on attributes or number types."""
    if name == "gesdd":
        modes = {ord("A"): "gesdd", ord("N"): "gesdd", ord("S"): "gesdd thin"}
        mode = options.get("mode", -1)
        return (None, modes[mode]) if mode in modes else (f"mode is {mode}, not one of A, N, S", name)
    if name == "trsm":
        sides = {ord("L"): "trsm left", ord("R"): "trsm right"}
        side = options.get("side", -1)
        return (None, sides[side]) if side in sides else (f"side is {side}, not L or R", name)
    if name == "gees" and options.get("sort") != ord("N"):
        # Sorting calls back into a function that a program cannot carry.
        return f"sort is {options.get('sort')}, not N", name
    return None, f"{name} complex" if dtype in _REAL else name


def _follows(rule: str, operands: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> bool:
    """Return whether operands and results follow a rule."""
    left, _, right = rule.partition("->")
    tokens = left.split() + right.split()
    tensors = [*operands, *results]
    if len(operands) != len(left.split()) or len(tensors) != len(tokens):
        return False
    first = tensors[0]
    batch_rank = len(first.shape) - len(tokens[0].partition(":")[2])
    if batch_rank < 0:
        return False
    batch, sizes = first.shape[:batch_rank], dict[str, int]()
    dtypes = {
        "A": first.dtype,
        "R": _REAL.get(first.dtype, first.dtype),
        "C": _COMPLEX.get(first.dtype, first.dtype),
        "I": "int32",
        "U": "uint32",
    }
    for token, tensor in zip(tokens, tensors, strict=True):
        kind, _, letters = token.partition(":")
        shape = tensor.shape[batch_rank:]
        if tensor.dtype != dtypes[kind] or tensor.shape[:batch_rank] != batch or len(shape) != len(letters):
            return False
        for letter, size in zip(letters, shape, strict=True):
            if letter == "k":
                expected = min(sizes["m"], sizes["n"])
            elif letter == "p":
                expected = max(sizes["n"] - 1, 0)
            else:
                expected = sizes.setdefault(letter, size)
            if size != expected:
                return False
    if rule == _HOUSEHOLDER:
        return sizes["j"] <= sizes["n"] <= sizes["m"]
    return rule not in RULES["pivots"] or sizes["j"] <= sizes["l"]
