"""Tensors that stay in shared memory for as long as the caller uses them, and no longer."""

import subprocess
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from stratagem.runtime.wire import Listener, Peer, Reply, Request

SIZE = 100_000


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A peer whose every answer is one larger than the last."""
    count = 0

    def answer(request: Request) -> Reply:
        nonlocal count
        count += 1
        return Reply(tensors=[np.full(SIZE, count, request.fields["dtype"]), np.full(2, count, np.float32)])

    with Listener("127.0.0.1:0", {"next": answer}) as listener, Peer(listener.address) as made:
        yield made


def call(peer: Peer, dtype: str = "float32") -> np.ndarray:
    return peer.call("next", {"dtype": dtype}, lend=True).tensors[0]


def connections(peer: Peer) -> int:
    return len(peer._pool._idle)


def test_what_is_lent_stays_as_it_is_while_it_is_in_use(peer: Peer) -> None:
    first = call(peer)
    assert not first.flags.writeable
    later = [call(peer) for _ in range(3)]
    assert [int(each[0]) for each in (first, *later)] == [1, 2, 3, 4]
    assert int(first[-1]) == 1


def test_a_view_of_a_view_and_an_array_of_jax_count_as_use(peer: Peer) -> None:
    view = call(peer)[10:20].reshape(2, 5)
    seen = jnp.asarray(call(peer))
    doubled = jax.jit(lambda array: array * 2)(call(peer))
    for _ in range(4):
        call(peer)
    assert view.tolist() == [[1.0] * 5] * 2
    assert float(seen[0]) == 2
    assert float(doubled[0]) == 6


def test_connections_come_back_when_all_is_let_go(peer: Peer) -> None:
    for _ in range(20):
        call(peer)
    assert connections(peer) == 1
    held = [call(peer) for _ in range(3)]
    assert connections(peer) == 0
    del held
    assert connections(peer) == 3
    assert int(call(peer)[0]) == 24


def test_dtypes_that_numpy_does_not_know_are_lent_too(peer: Peer) -> None:
    lent = call(peer, "bfloat16")
    assert lent.dtype == ml_dtypes.bfloat16
    assert not lent.flags.writeable
    assert float(lent[-1]) == 1


def test_without_shared_memory_the_caller_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SHM", "off")
    with (
        Listener("127.0.0.1:0", {"next": lambda request: Reply(tensors=[np.ones(SIZE)])}) as listener,
        Peer(listener.address) as peer,
    ):
        assert peer.call("next", lend=True).tensors[0].flags.writeable
        assert connections(peer) == 1


def test_a_process_that_ends_with_something_lent_says_nothing() -> None:
    ends = """
import os
import numpy as np
from stratagem.runtime.wire import shared_memory


def over(write=os.write):
    write(1, b"over")


shared_memory.held = shared_memory.Lease(over).lend(np.zeros(3))
"""
    done = subprocess.run([sys.executable, "-c", ends], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_connection_that_broke_is_not_used_again_when_its_lease_ends() -> None:
    handlers = {"echo": lambda request: Reply(request.fields)}
    with Listener("127.0.0.1:0", handlers) as listener, Peer(listener.address) as peer:
        peer.call("echo")
        (connection,) = peer._pool._idle
        peer._pool._idle.clear()
        connection.channel.close()
        peer._pool.give_back(connection)  # as a lease does that outlives its call in a traceback
        assert peer.call("echo", {"a": 1}).fields == {"a": 1}
