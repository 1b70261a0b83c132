"""Bounds on programs: bytes, constants, operations, inputs, outputs and memory."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import LimitExceeded, ProgramRefused
from stratagem.runtime.programs import Inspector, ProgramCache, ProgramLimits, export_program, verify
from unit.runtime.programs.crafting import FOUR, around, artifact

SMALL = export_program(lambda x, y: (jnp.sin(x) + y, y), np.zeros(4, np.float32), np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("artifact_bytes", 100, r"is \d+ bytes; the server's ProgramLimits.artifact_bytes is 100"),
        ("operations", 3, "more than 3 operations"),
        ("inputs", 1, "has 2 inputs"),
        ("outputs", 1, "has 2 outputs"),
        ("unfused_bytes", 50, r"would take \d+ bytes of memory.*ProgramLimits.unfused_bytes is 50"),
    ],
)
def test_each_limit(name: str, limit: int, message: str, inspector: Inspector) -> None:
    verify(SMALL.artifact, inspector=inspector)
    with pytest.raises(ProgramRefused, match=message):
        verify(SMALL.artifact, ProgramLimits(**{name: limit}), inspector=inspector)


def test_constants_count_unless_they_repeat_one_value(inspector: Inspector) -> None:
    table = np.arange(1000, dtype=np.float32)
    program = export_program(lambda x: x + table, table)
    assert verify(program.artifact, inspector=inspector).summary.constant_bytes == 4000
    with pytest.raises(
        ProgramRefused, match="more than 3999 bytes of constants: pass large arrays as inputs"
    ):
        verify(program.artifact, ProgramLimits(constant_bytes=3999), inspector=inspector)
    repeated = export_program(lambda x: x + np.ones(1000, np.float32), table)
    assert verify(repeated.artifact, inspector=inspector).summary.constant_bytes == 0


def test_a_kilobyte_that_asks_for_ten_terabytes(inspector: Inspector) -> None:
    body = """
        %0 = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xf32>) -> tensor<4x625000000000xf32>
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [1]
            : (tensor<4x625000000000xf32>, tensor<f32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>"""
    bomb = around(body)
    assert len(bomb) < 2000
    with pytest.raises(ProgramRefused, match=r"would take 100000000000\d\d bytes"):
        verify(bomb, inspector=inspector)


def test_a_constant_of_one_value_counts_as_memory(inspector: Inspector) -> None:
    body = """
        %0 = stablehlo.constant dense<1.0> : tensor<625000000000x4xf32>
        %1 = stablehlo.slice %0 [0:1, 0:4] : (tensor<625000000000x4xf32>) -> tensor<1x4xf32>
        %2 = stablehlo.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
        return %2 : tensor<4xf32>"""
    with pytest.raises(ProgramRefused, match=r"would take 100000000000\d\d bytes"):
        verify(around(body), inspector=inspector)


def test_calls_count_as_often_as_they_happen(inspector: Inspector) -> None:
    """Thirty functions that each call the next one twice are a few lines and 2³⁰ operations."""
    call = "call @f{0}(%{1}) : (tensor<4xf32>) -> tensor<4xf32>"
    functions = [
        f"func.func private @f{i}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n"
        f"%b = {call.format(i + 1, 'a')}\n%c = {call.format(i + 1, 'b')}\nreturn %c : tensor<4xf32> }}"
        for i in range(30)
    ]
    text = f"""module {{
        func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
            %b = {call.format(0, "a")}
            return %b : tensor<4xf32> }}
        {" ".join(functions)}
        func.func private @f30(%a: tensor<4xf32>) -> tensor<4xf32> {{ return %a : tensor<4xf32> }} }}"""
    with pytest.raises(ProgramRefused, match="more than 200000 operations"):
        verify(artifact(text, [FOUR], [FOUR]), inspector=inspector)


def unfused(fn: Any, *args: Any, inspector: Inspector) -> int:
    return verify(export_program(fn, *args).artifact, inspector=inspector).summary.unfused_bytes


def test_memory_follows_what_is_live(inspector: Inspector) -> None:
    x = np.zeros(1000, np.float32)
    chain = unfused(lambda x: jnp.sin(jnp.sin(jnp.sin(jnp.sin(x)))), x, inspector=inspector)
    assert chain == 3 * x.nbytes  # the input, the last result and the one before it
    together = unfused(lambda x: (jnp.sin(x), jnp.cos(x), jnp.tan(x)), x, inspector=inspector)
    assert together == 4 * x.nbytes


def test_memory_is_asked_of_xla_before_the_first_call(inspector: Inspector) -> None:
    x = np.zeros((300, 300), np.float32)
    program = export_program(lambda x: (x @ x) @ (x @ x), x)
    with ProgramCache(inspector=inspector) as roomy:
        needed = roomy.load(program.artifact).memory_bytes
    assert needed >= 2 * x.nbytes
    limits = ProgramLimits(memory_bytes=needed - 1)
    with (
        ProgramCache(limits=limits, inspector=inspector) as tight,
        pytest.raises(ProgramRefused, match=f"takes {needed} bytes; the server's ProgramLimits.memory_bytes"),
    ):
        tight.load(program.artifact)


def test_what_xla_fuses_away_is_allowed(inspector: Inspector) -> None:
    """Two thousand points, all differences: 32 GB unfused per term, almost nothing fused."""
    points = np.zeros((2000, 3), np.float32)
    program = export_program(lambda x: ((x[:, None] - x[None]) ** 2).sum(), points)
    with ProgramCache(inspector=inspector) as cache:
        loaded = cache.load(program.artifact)
    assert loaded.memory_bytes < loaded.summary.unfused_bytes / 10


def test_limits_are_checked() -> None:
    with pytest.raises(LimitExceeded, match=r"ProgramLimits\(operations=-1\)"):
        ProgramLimits(operations=-1)
