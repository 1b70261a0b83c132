"""Versions of values: who reads one has it as it was, and only who is near is waited for."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.parameters.versions import Versions, copies

SECONDS = 30.0
SIZE = 100_000


@partial(jax.jit, donate_argnums=0)
def _add(values: list[jax.Array]) -> list[jax.Array]:
    return [value + 1 for value in values]


def begun(are_shared: bool = False) -> Versions:
    """One parameter and one value of the optimizer's, both zeros of step 0."""
    versions = Versions(1, are_shared)
    with versions.replacing():
        versions.publish(0, copies([np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)]))
    return versions


def update(versions: Versions) -> None:
    with versions.replacing() as values:
        made = jax.block_until_ready(_add(values))
        versions.publish(versions.step + 1, made)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@contextmanager
def reading(versions: Versions) -> Iterator[tuple[int, Sequence[Any]]]:
    step, views, release = versions.read(everything=True, is_far=False)
    try:
        yield step, views
    finally:
        release()


def numbers(views: Sequence[Any]) -> list[set[float]]:
    return [set(np.asarray(view).tolist()) for view in views]


@pytest.mark.parametrize("are_shared", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_a_far_reader_keeps_its_version_and_holds_nobody_up(everything: bool, are_shared: bool) -> None:
    versions = begun(are_shared)
    update(versions)
    step, views, release = versions.read(everything, is_far=True)
    for _ in range(5):
        update(versions)
    assert (step, versions.step) == (1, 6)
    assert numbers(views) == [{1.0}] * (2 if everything else 1)
    release()
    _, newest, release = versions.read(everything=True, is_far=False)
    assert numbers(newest) == [{6.0}] * 2
    release()


def test_several_far_readers_at_several_versions() -> None:
    versions = begun()
    held = []
    for _ in range(4):
        held.append(versions.read(everything=False, is_far=True))
        held.append(versions.read(everything=True, is_far=True))
        update(versions)
    for step, views, _ in held:
        assert set().union(*numbers(views)) == {float(step)}
    for _, _, release in reversed(held):
        release()
    assert versions.step == 4


def test_an_update_waits_for_who_is_near() -> None:
    versions = begun()
    _, views, release = versions.read(everything=False, is_far=False)
    updating = threading.Thread(target=update, args=(versions,))
    updating.start()
    updating.join(0.05)
    assert updating.is_alive()
    assert numbers(views) == [{0.0}]
    release()
    updating.join(SECONDS)
    assert versions.step == 1


def test_readers_share_and_an_update_waits_for_all_of_them(threads: ThreadPoolExecutor) -> None:
    versions = begun()
    _, _, release = versions.read(everything=False, is_far=False)
    with reading(versions):
        updating = threads.submit(update, versions)
        time.sleep(0.02)
        assert not updating.done()
    time.sleep(0.02)
    assert not updating.done()
    threads.submit(release).result(SECONDS)  # by another thread than took it
    updating.result(SECONDS)


@pytest.mark.parametrize("is_far", [False, True])
def test_an_update_goes_before_readers_that_come_after_it(threads: ThreadPoolExecutor, is_far: bool) -> None:
    versions, steps = begun(), list[int]()

    def read() -> None:
        step, _, release = versions.read(everything=False, is_far=is_far)
        steps.append(step)
        release()

    _, _, release = versions.read(everything=False, is_far=False)
    updating = threads.submit(update, versions)
    end = time.monotonic() + SECONDS
    while not versions._replacers:
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)
    readings: list[Future[None]] = [threads.submit(read) for _ in range(3)]
    time.sleep(0.02)
    assert steps == []
    release()
    for each in (updating, *readings):
        each.result(SECONDS)
    assert steps == [1, 1, 1]


def test_nobody_reads_what_is_half_written_and_updates_follow_one_another(
    threads: ThreadPoolExecutor,
) -> None:
    versions, ends = begun(), threading.Event()

    def write() -> None:
        for _ in range(50):
            update(versions)

    def read() -> int:
        times = 0
        while not ends.is_set():
            with reading(versions) as (step, views):
                assert numbers([view[::1000] for view in views]) == [{float(step)}] * 2
            times += 1
        return times

    readers = [threads.submit(read) for _ in range(3)]
    writers = [threads.submit(write) for _ in range(3)]
    for writer in writers:
        writer.result(SECONDS)
    ends.set()
    assert all(reader.result(SECONDS) for reader in readers)
    assert versions.step == 150


def test_without_readers_there_is_one_version_whose_memory_is_used_again() -> None:
    versions = begun()
    places = set()
    for _ in range(20):
        update(versions)
        with versions.replacing() as values:
            places |= {value.unsafe_buffer_pointer() for value in values}
            versions.publish(versions.step, values)
    assert len(places) == 2


def test_a_version_lives_as_long_as_its_readers() -> None:
    versions = begun()
    with versions.replacing() as values:
        versions.publish(0, values)
        first = weakref.ref(values[0])
    del values
    readers = [versions.read(everything=False, is_far=True) for _ in range(2)]
    update(versions)
    gc.collect()
    assert first() is not None
    for _, _, release in readers:
        release()
    del readers, release
    gc.collect()
    assert first() is None


def test_values_of_64_bits_are_copied_as_they_are() -> None:
    with jax.enable_x64(True):
        values = [jnp.arange(3, dtype=jnp.int64), jnp.ones(2, jnp.float64), jnp.ones(2, jnp.bfloat16)]
    assert [value.dtype for value in copies(values)] == [value.dtype for value in values]
