"""The servers' locks: nobody who waits is forgotten, and a writer has what it writes alone."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stratagem.parameters.locks import Changes, SharedLock

SECONDS = 30.0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@contextmanager
def shared(lock: SharedLock) -> Iterator[None]:
    lock.acquire_shared()
    try:
        yield
    finally:
        lock.release_shared()


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.001)


def test_everybody_who_waits_hears_of_a_change(threads: ThreadPoolExecutor) -> None:
    changes, step, heard = Changes(), 0, [0] * 4

    def follow(number: int) -> None:
        with changes.lock:
            while heard[number] < 20:
                assert changes.wait_for(lambda: step > heard[number], SECONDS)
                heard[number] = step

    followers = [threads.submit(follow, number) for number in range(4)]
    while any(each < 20 for each in heard):
        with changes.lock:
            step += 1
            changes.notify_all()
    for follower in followers:
        follower.result(SECONDS)


def test_to_tell_where_nobody_waits_does_nothing_and_waiting_ends_by_itself() -> None:
    changes = Changes()
    with changes.lock:
        changes.notify_all()
        assert not changes.wait(0.01)
    with changes:  # as with any condition
        assert not changes.wait(0.01)
        changes.notify_all()


def test_readers_share_and_a_writer_waits_for_all_of_them(threads: ThreadPoolExecutor) -> None:
    lock = SharedLock()

    def write() -> None:
        with lock:
            pass

    lock.acquire_shared()
    with shared(lock):
        writing = threads.submit(write)
        time.sleep(0.02)
        assert not writing.done()
    time.sleep(0.02)
    assert not writing.done()
    threads.submit(lock.release_shared).result(SECONDS)  # by another thread than took it
    writing.result(SECONDS)


def test_a_writer_goes_before_readers_that_come_after_it(threads: ThreadPoolExecutor) -> None:
    lock, order = SharedLock(), list[str]()

    def write() -> None:
        with lock:
            order.append("write")

    def read() -> None:
        with shared(lock):
            order.append("read")

    lock.acquire_shared()
    writing = threads.submit(write)
    until(lambda: lock._writers_waiting == 1)
    readings: list[Future[None]] = [threads.submit(read) for _ in range(3)]
    time.sleep(0.02)
    assert order == []
    lock.release_shared()
    for each in (writing, *readings):
        each.result(SECONDS)
    assert order == ["write", "read", "read", "read"]


def test_nobody_reads_what_is_half_written(threads: ThreadPoolExecutor) -> None:
    lock, values, ends = SharedLock(), [0, 0], threading.Event()

    def write() -> None:
        for _ in range(200):
            with lock:
                values[0] += 1
                time.sleep(0)
                values[1] += 1

    def read() -> int:
        times = 0
        while not ends.is_set():
            with shared(lock):
                assert values[0] == values[1]
            times += 1
        return times

    readers = [threads.submit(read) for _ in range(3)]
    writers = [threads.submit(write) for _ in range(3)]
    for writer in writers:
        writer.result(SECONDS)
    ends.set()
    assert all(reader.result(SECONDS) for reader in readers)
    assert values == [600, 600]
