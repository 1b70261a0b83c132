"""Kill one side with signal 9 in the middle of a transfer: the other notices, and continues.

Each drill returns the seconds that the survivor took to notice, one per round.
"""

import os
import random
import select
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from drills.processes import descriptors, fork, until
from drills.remote_listener import RemoteListener
from drills.table import Outcome
from stratagem.errors import TaskLost, TaskUnreachable
from stratagem.runtime.wire import Peer

NOTICED_WITHIN = 2.0
CHECKED = f"noticed within {NOTICED_WITHIN:g} s; no memory or descriptor is left; the next call is answered"


def shared_memory_files() -> set[str]:
    """Return the names in /dev/shm that may be ours: other programs, and parallel tests, have theirs there too."""
    return {path.name for path in Path("/dev/shm").iterdir() if "stratagem" in path.name}


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Fork a child process that works until it is killed."""
    child = fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def kill_clients(rounds: int, seed: int = 0) -> list[float]:
    """Kill clients while they send and receive 8 MB at a time; the server loses them and nothing else."""
    chance = random.Random(seed)
    noticed = []
    names = shared_memory_files()
    with RemoteListener() as far, far.peer() as watcher:
        watcher.call("who")
        before = descriptors(far.pid)
        for number in range(rounds):
            reading, writing = os.pipe()

            def work(number: int = number, writing: int = writing) -> None:
                array = np.zeros(1_000_000)
                with far.peer(shared_memory=number % 2 == 0) as peer:
                    while True:
                        peer.call("echo", tensors=[array])
                        os.write(writing, b"x")

            with forked(work):
                assert select.select([reading], [], [], 20)[0], "the client does not get going"
                time.sleep(chance.uniform(0, 0.03))  # a moment like any other
            start = time.monotonic()
            until("its connection is gone", lambda: watcher.call("status").fields["connections"] == 1)
            until("its descriptors are closed", lambda: descriptors(far.pid) <= before)
            noticed.append(time.monotonic() - start)
            os.close(reading)
            os.close(writing)
            assert watcher.call("echo", {"round": number}).fields == {"round": number}
    assert shared_memory_files() <= names
    return noticed


def kill_servers(rounds: int, seed: int = 0) -> list[float]:
    """Kill servers in the middle of calls; the client reports it at once and finds the next server."""
    chance = random.Random(seed)
    noticed = []
    names = shared_memory_files()
    before = descriptors()
    array = np.zeros(1_000_000)
    address = "127.0.0.1:0"
    peers: list[Peer] = []

    def transfer(peer: Peer) -> float:
        """Call until a call fails. Return when that was."""
        try:
            while True:
                peer.call("echo", tensors=[array], timeout=30, wait=False)
        except (TaskLost, TaskUnreachable):  # it died during a call, or between two
            return time.monotonic()

    def wait(peer: Peer) -> float:
        try:
            peer.call("hang", timeout=30)
        except TaskLost:
            return time.monotonic()
        raise AssertionError("it answered")

    with ThreadPoolExecutor(4) as threads:
        for number in range(rounds):
            with RemoteListener(where=address) as far:
                address = far.address
                peers = peers or [far.peer(shared_memory=shared) for shared in (True, False)]
                for peer in peers:
                    assert peer.call("echo", {"round": number}, timeout=20).fields == {"round": number}
                calls = [threads.submit(work, peer) for peer in peers for work in (transfer, wait)]
                assert far.process.stdout is not None
                for _ in peers:
                    assert far.process.stdout.readline() == "hanging\n"
                time.sleep(chance.uniform(0, 0.03))  # a moment like any other
                killed = time.monotonic()
                far.kill()
                noticed.append(max(call.result(20) for call in calls) - killed)
    for peer in peers:
        peer.close()
    assert shared_memory_files() <= names
    until("descriptors are closed", lambda: descriptors() <= before)
    return noticed


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcomes of both drills."""
    outcomes = []
    for name, drill in (("wire: kill -9 a client", kill_clients), ("wire: kill -9 a server", kill_servers)):
        try:
            noticed = drill(rounds, seed)
        except Exception as error:  # noqa: BLE001  it is told in the table, and the other drills still count
            outcomes.append(Outcome(name, 0.0, f"{type(error).__name__}: {error}", CHECKED))
            continue
        outcomes += [
            Outcome(
                name,
                seconds,
                None if seconds < NOTICED_WITHIN else f"noticed after {seconds:.1f} s",
                CHECKED,
            )
            for seconds in noticed
        ]
    return outcomes
