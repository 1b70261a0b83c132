"""Damaged artifacts are refused, and never do harm: cut, flipped, overwritten, with bytes put in or left out."""

import os
import random
import signal
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs import Inspector, ProgramLimits, export_program, verify
from stratagem.runtime.programs.verification import read_container
from stratagem.runtime.programs.walk import walk
from unit.runtime.programs.crafting import sine_of_four

PROGRAM = export_program(
    lambda x, i: (
        jax.lax.scan(lambda c, y: (c + y, c * y), 0.0, x),
        jnp.sort(x)[i],
        jnp.linalg.qr(x[:, None]),
    ),
    np.zeros(4, np.float32),
    np.int32(0),
)


def damaged(artifact: bytes, source: random.Random) -> bytes:
    data = bytearray(artifact)
    where = source.randrange(len(data))
    kind = source.randrange(5)
    if kind == 0:
        del data[where:]
    elif kind == 1:
        del data[where : where + source.randint(1, 16)]
    elif kind == 2:
        data[where:where] = source.randbytes(source.randint(1, 16))
    elif kind == 3:
        data[where] = source.randrange(256)
    else:
        for _ in range(source.randint(1, 4)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    return bytes(data)


def test_damage_is_refused_and_nothing_else_happens(inspector: Inspector) -> None:
    accepted = 0
    for seed in range(500):
        try:
            verify(damaged(PROGRAM.artifact, random.Random(seed)), inspector=inspector)
            accepted += 1  # a byte of padding, or another constant: a program all the same
        except ProgramRefused:
            pass
    assert accepted < 125
    verify(PROGRAM.artifact, inspector=inspector)


def test_garbage_is_refused(inspector: Inspector) -> None:
    source = random.Random(0)
    for length in (0, 1, 3, 4, 8, 100, 5000):
        for artifact in (source.randbytes(length), bytes(length), b"\xff" * length):
            with pytest.raises(ProgramRefused):
                verify(artifact, inspector=inspector)


def test_lengths_that_lie_cost_nothing() -> None:
    """Each four bytes of the container in turn claim to be a huge number."""
    artifact = bytes(sine_of_four().serialize())
    start = len(artifact) - len(sine_of_four().mlir_module_serialized)
    for where in range(0, start, 4):
        lying = artifact[:where] + struct.pack("<I", 0x7FFFFFF0) + artifact[where + 4 :]
        try:
            read_container(lying, ProgramLimits())
        except ProgramRefused:
            continue


def test_after_a_crash_another_process_reads_on() -> None:
    module = read_container(PROGRAM.artifact, None).module
    with Inspector() as own:
        own.start()
        child = own._child
        assert child is not None
        os.kill(child._process.pid, signal.SIGSTOP)
        os.kill(child._process.pid, signal.SIGKILL)
        child._process.wait(30)
        assert own.walk(module, "cpu", None).inputs == PROGRAM.inputs
        assert own.starts == 2


def test_a_program_that_outgrows_the_process_is_refused() -> None:
    table = np.random.default_rng(0).random(2_000_000, np.float32)
    big = export_program(lambda x: x + table, table)
    with (
        Inspector(memory_bytes=4 << 20) as own,
        pytest.raises(ProgramRefused, match="program inspector crashed on it"),
    ):
        verify(big.artifact, inspector=own)


def test_a_program_that_takes_too_long_is_refused() -> None:
    with Inspector(seconds=1e-5) as own, pytest.raises(ProgramRefused, match=r"within 1e-05 s"):
        verify(PROGRAM.artifact, inspector=own)


def test_the_process_ends_when_idle_and_starts_again() -> None:
    with Inspector(idle_seconds=0.05) as own:
        own.start()
        child = own._child
        assert child is not None
        assert child._process.wait(30) == -signal.SIGALRM
        verify(PROGRAM.artifact, inspector=own)
        assert own.starts == 2


def test_the_process_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SECRET", "swordfish")
    with Inspector() as own:
        own.start()
        child = own._child
        assert child is not None
        process = Path(f"/proc/{child._process.pid}")
        assert b"swordfish" not in (process / "environ").read_bytes()
        assert "/jaxlib/_jax" not in (process / "maps").read_text()  # without JAX: it starts fast


def test_the_process_ends_with_its_owner() -> None:
    own = Inspector()
    own.start()
    child = own._child
    assert child is not None
    own.close()
    own.close()
    assert not child.is_running()


def test_the_walk_is_the_same_in_this_process(inspector: Inspector) -> None:
    module = read_container(PROGRAM.artifact, None).module
    assert walk(module, "cpu", None) == inspector.walk(module, "cpu", None)
