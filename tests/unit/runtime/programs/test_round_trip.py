"""A program computes what the function computes: for many functions, dtypes and settings of JAX."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from stratagem.runtime.programs import ProgramCache, export_program
from stratagem.runtime.programs.summary import ELEMENTS

RANDOM = np.random.default_rng(0)
VECTOR = RANDOM.uniform(0.1, 1, 6).astype(np.float32)
TALL = RANDOM.uniform(0.1, 1, (5, 3)).astype(np.float32)
SQUARE = RANDOM.uniform(0.1, 1, (4, 4)).astype(np.float32)
SYMMETRIC = SQUARE @ SQUARE.T + 4 * np.eye(4, dtype=np.float32)
COMPLEX = (SQUARE + 1j * SQUARE.T).astype(np.complex64)
IMAGE = RANDOM.uniform(0.1, 1, (1, 8, 8, 3)).astype(np.float32)
KERNEL = RANDOM.uniform(0.1, 1, (3, 3, 3, 4)).astype(np.float32)
INDICES = np.array([0, 2, 5], np.int32)
KEY = np.array([0, 42], np.uint32)


def convolve(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def control(x: Any, indices: Any) -> Any:
    return (
        lax.while_loop(lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, carry[1] * 2), (0, x)),
        lax.scan(lambda total, y: (total + y, total), 0.0, x),
        lax.cond(indices[0] > 0, jnp.sin, jnp.cos, x),
        lax.switch(indices[1], [jnp.sin, jnp.cos, jnp.tan], x),
        lax.fori_loop(0, indices[2], lambda i, carry: carry + i, x),
    )


def randomness(key: Any) -> Any:
    return (
        jax.random.normal(key, (3,)),
        jax.random.permutation(key, 8),
        jax.random.bernoulli(jax.random.wrap_key_data(key), 0.3, (5,)),
        jax.random.categorical(key, jnp.zeros(4)),
    )


def pooled(x: Any) -> Any:
    window = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return window.sum()


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "nothing": (lambda: (), []),
    "constants": (lambda: {"one": 1, "half": 0.5, "none": None, "array": np.arange(3)}, []),
    "unused input": (lambda x, y: y * 2, [SQUARE, VECTOR]),
    "same": (lambda x: x, [VECTOR]),
    "matrices": (lambda x: jnp.tanh(x) @ x.T, [TALL]),
    "convolution": (convolve, [IMAGE, KERNEL]),
    "its gradient": (jax.grad(lambda k, x: (convolve(x, k) ** 2).sum()), [KERNEL, IMAGE]),
    "pooling's gradient": (jax.grad(pooled), [IMAGE]),
    "sorting": (lambda x: (jnp.sort(x), jnp.argsort(x), lax.top_k(x, 2)), [VECTOR]),
    "indexing": (lambda x, i: (x[i], x.at[i].add(1.0), x.at[i].max(0.5), x[::-1]), [VECTOR, INDICES]),
    "slices": (
        lambda x, i: (lax.dynamic_slice(x, (i[0],), (2,)), lax.dynamic_update_slice(x, x[:2], (i[1],))),
        [VECTOR, INDICES],
    ),
    "reductions": (lambda x: (x.sum(), x.var(), x.argmax(), jnp.cumsum(x), jnp.linalg.norm(x)), [VECTOR]),
    "control": (control, [VECTOR, np.array([1, 2, 3], np.int32)]),
    "randomness": (randomness, [KEY]),
    "special functions": (
        lambda x: (lax.erf(x), lax.erf_inv(x), lax.lgamma(x), lax.digamma(x), lax.bessel_i1e(x), jnp.sinh(x)),
        [VECTOR],
    ),
    "composites": (lax.composite(lambda x: (x * 2, jnp.cosh(x)), name="mine.double"), [VECTOR]),
    "fourier": (lambda x: (jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x))), [VECTOR]),
    "checkpoint": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), [VECTOR]),
    "cholesky": (jnp.linalg.cholesky, [SYMMETRIC]),
    "qr": (jnp.linalg.qr, [TALL]),
    "qr of many": (jnp.linalg.qr, [np.stack([TALL, 2 * TALL])]),
    "qr complex": (jnp.linalg.qr, [COMPLEX]),
    "svd thin": (lambda x: jnp.linalg.svd(x, full_matrices=False), [TALL]),
    "svd full": (jnp.linalg.svd, [TALL]),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), [TALL]),
    "eigh": (jnp.linalg.eigh, [SYMMETRIC]),
    "eigh complex": (jnp.linalg.eigh, [COMPLEX]),
    "eig": (jnp.linalg.eig, [SQUARE]),
    "eig complex": (jnp.linalg.eig, [COMPLEX]),
    "schur": (jax.scipy.linalg.schur, [SQUARE]),
    "schur complex": (jax.scipy.linalg.schur, [COMPLEX]),
    "lu": (jax.scipy.linalg.lu, [TALL]),
    "solve": (jnp.linalg.solve, [SYMMETRIC, SQUARE]),
    "triangular": (jax.scipy.linalg.solve_triangular, [SYMMETRIC, SQUARE]),
    "hessenberg": (lax.linalg.hessenberg, [SQUARE]),
    "tridiagonal": (lax.linalg.tridiagonal, [SYMMETRIC]),
    "tridiagonal solve": (lax.linalg.tridiagonal_solve, [*np.diag(SYMMETRIC)[None].repeat(3, 0), SQUARE]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_computes_the_same(name: str, cache: ProgramCache) -> None:
    fn, args = FUNCTIONS[name]
    program = export_program(fn, *args)
    result = program.unflatten(cache.load(program.artifact)(program.flatten(*args), wait=True))
    expected = jax.jit(fn)(*args)
    assert program.out_tree == jax.tree.flatten(expected)[1]
    for ours, theirs in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        # One device and one compiler, yet what is fused differs where a constant became an input.
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [element.dtype for element in ELEMENTS])
def test_every_dtype_goes_in_and_out(dtype: str, cache: ProgramCache) -> None:
    values = np.array([1, 0, 0, 0]).astype(np.dtype(dtype))
    with jax.enable_x64(True):
        program = export_program(lambda x: (x, x[::-1]), values)
    assert program.inputs[0].dtype == program.outputs[1].dtype == dtype
    same, reverse = cache.load(program.artifact)([values], wait=True)
    assert same.dtype == reverse.dtype == values.dtype
    # By their bytes: float8_e8m0fnu has no zero, and NaN is not equal to itself.
    assert np.asarray(same).tobytes() == values.tobytes()
    assert np.asarray(reverse).tobytes() == values[::-1].tobytes()


@pytest.mark.parametrize("optimizer", [optax.adam(1e-2), optax.adafactor(1e-2), optax.lamb(1e-2)])
def test_an_optimizer_s_update(optimizer: Any, cache: ProgramCache) -> None:
    params = {"w": TALL, "b": VECTOR}
    state = optimizer.init(params)

    def update(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    program = export_program(update, params, state, params)
    result = program.unflatten(cache.load(program.artifact)(program.flatten(params, state, params)))
    for ours, theirs in zip(
        jax.tree.leaves(result), jax.tree.leaves(update(params, state, params)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


ELSEWHERE = """
import sys
import numpy as np
import jax
import jax.numpy as jnp
from stratagem.runtime.programs import export_program

open(sys.argv[1], "wb").write(export_program(lambda x: jnp.sin(x) * 2, np.zeros(3, np.float32)).artifact)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_default_prng_impl", "rbg")
wide = lambda x, i: (x @ x, i + 1, jax.random.uniform(jax.random.key(0), (2,)))
open(sys.argv[2], "wb").write(export_program(wide, np.eye(2), np.arange(3)).artifact)
"""


def test_programs_of_a_process_with_other_settings(tmp_path: Path, cache: ProgramCache) -> None:
    paths = [tmp_path / "narrow", tmp_path / "wide"]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *map(str, paths)], check=True, timeout=120)
    here = export_program(lambda x: jnp.sin(x) * 2, np.zeros(3, np.float32))
    assert paths[0].read_bytes() == here.artifact

    matrix = np.full((2, 2), 1 + 1e-12)
    product, integers, uniform = cache.load(paths[1].read_bytes())([matrix, np.arange(3) + 2**40], wait=True)
    assert jnp.zeros(1).dtype == np.float32
    np.testing.assert_array_equal(product, matrix @ matrix)
    np.testing.assert_array_equal(integers, np.arange(3) + 2**40 + 1)
    assert uniform.dtype == np.float64
