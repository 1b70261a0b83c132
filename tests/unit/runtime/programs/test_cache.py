"""The cache compiles each program once, whoever asks, and keeps no more than it may."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.errors import LimitExceeded, ProgramRefused
from stratagem.runtime.programs import CompiledProgram, Inspector, ProgramCache, export_program
from unit.runtime.programs.crafting import around

ZEROS = np.zeros(4, np.float32)
SINE = export_program(jnp.sin, ZEROS)


def test_many_threads_compile_once(cache: ProgramCache) -> None:
    threads = 16
    barrier = Barrier(threads)

    def load(_: int) -> CompiledProgram:
        barrier.wait(30)
        program = cache.load(SINE.artifact)
        program([ZEROS])
        return program

    with ThreadPoolExecutor(threads) as pool:
        loaded = list(pool.map(load, range(threads)))
    assert len(set(map(id, loaded))) == 1
    assert cache.statistics().compiled == 1
    assert loaded[0].calls == threads


def test_many_threads_are_refused_and_nothing_is_remembered(cache: ProgramCache) -> None:
    hostile = around("""
        %0 = stablehlo.custom_call @evil(%a) : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>""")
    barrier = Barrier(8)

    def load(_: int) -> str:
        barrier.wait(30)
        with pytest.raises(ProgramRefused, match="custom call to 'evil'") as refused:
            cache.load(hostile)
        return str(refused.value)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load, range(8)))) == 1
    assert len(cache) == 0
    with pytest.raises(ProgramRefused):
        cache.load(hostile)


def test_found_by_hash_once_loaded(cache: ProgramCache) -> None:
    assert not cache.has(SINE.content_hash)
    assert cache.find(SINE.content_hash) is None
    program = cache.load(SINE.artifact)
    assert cache.has(SINE.content_hash)
    assert cache.find(SINE.content_hash) is program is cache.load(SINE.artifact)
    assert not cache.has(SINE.content_hash, donate=(0,))
    assert cache.load(SINE.artifact, donate=(0,)) is not program
    assert cache.statistics().compiled == 2


def test_a_device_may_be_named(cache: ProgramCache) -> None:
    device = jax.devices()[-1]
    program = cache.load(SINE.artifact, device=device)
    (result,) = program([ZEROS])
    assert result.devices() == {device}
    assert cache.has(SINE.content_hash, device=device)


def test_the_longest_unused_gives_way(inspector: Inspector) -> None:
    programs = [export_program(fn, ZEROS) for fn in (jnp.sin, jnp.cos, jnp.tanh)]
    with ProgramCache(capacity=2, inspector=inspector) as cache:
        cache.load(programs[0].artifact)
        cache.load(programs[1].artifact)
        cache.find(programs[0].content_hash)
        cache.load(programs[2].artifact)
        assert [cache.has(program.content_hash) for program in programs] == [True, False, True]
        statistics = cache.statistics()
        assert (statistics.size, statistics.compiled, statistics.evicted) == (2, 3, 1)


def test_closing_forgets(inspector: Inspector) -> None:
    with ProgramCache() as cache:
        cache.load(SINE.artifact)
    assert len(cache) == 0
    with pytest.raises(LimitExceeded, match="capacity=0"):
        ProgramCache(capacity=0, inspector=inspector)
