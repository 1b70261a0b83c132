"""Calls between two processes: every dtype, both transports, errors, deadlines, threads, forks."""

import logging
import math
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drills.processes import descriptors, fork, until
from drills.remote_listener import RemoteListener, peak_bytes
from stratagem.errors import (
    DeadlineExceeded,
    LimitExceeded,
    ProgramRefused,
    ProtocolError,
    RemoteCallError,
    RemoteError,
    TaskLost,
    TaskUnreachable,
    VariableNotFound,
)
from stratagem.runtime.wire import Credentials, Listener, Peer, Reply, Request
from stratagem.runtime.wire.addresses import address_at, bind
from stratagem.runtime.wire.arrays import Array, dtype_names, dtype_of, raw_bytes

SHARED, TCP = True, False


@pytest.fixture(scope="module")
def far() -> Iterator[RemoteListener]:
    with RemoteListener() as far:
        yield far


@pytest.fixture(params=[SHARED, TCP], ids=["shared memory", "tcp"])
def peer(far: RemoteListener, request: pytest.FixtureRequest) -> Iterator[Peer]:
    with far.peer(shared_memory=request.param) as peer:
        peer.call("who")
        assert peer.transport == ("shared memory" if request.param else "tcp")
        yield peer


def arrays_of(dtype: np.dtype[np.generic]) -> list[Array]:
    random = np.random.default_rng(0)
    found = []
    for shape in ((), (0,), (2, 0, 3), (1,), (3, 5), (70, 1000)):
        raw = random.integers(0, 2, (*shape, dtype.itemsize), np.uint8)
        found.append(raw.view(dtype).reshape(shape))
    return found


@pytest.mark.parametrize("name", dtype_names())
def test_every_dtype_and_shape_comes_back_as_it_went(peer: Peer, name: str) -> None:
    arrays = arrays_of(dtype_of(name))
    for array, back in zip(arrays, peer.call("echo", tensors=arrays, timeout=10).tensors, strict=True):
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert np.array_equal(raw_bytes(back), raw_bytes(array))
        assert back.flags.writeable
        assert back.ctypes.data % 64 == 0 or back.nbytes == 0


def test_strided_and_big_endian_arrays_are_converted(peer: Peer) -> None:
    whole = np.arange(300_000, dtype=np.int32).reshape(500, 600)
    sent = [
        whole.T,
        whole[::2, ::3],
        whole.astype(">i4"),
        whole[:0],
        np.broadcast_to(np.float32(1), (90, 90)),
    ]
    for array, back in zip(sent, peer.call("echo", tensors=sent).tensors, strict=True):
        assert np.array_equal(array, back)


def test_fields_travel(peer: Peer) -> None:
    fields = {
        "none": None,
        "int": -(2**40),
        "float": 1.5,
        "text": "Æ" * 10_000,
        "bytes": b"\0\xff",
        "deep": [{"a": [1]}],
    }
    assert peer.call("echo", fields).fields == fields
    large = {"large": b"x" * 3_000_000}
    assert peer.call("echo", large).fields == large


def test_many_tensors_in_one_call(peer: Peer) -> None:
    arrays = [np.full(index % 50, index, np.int16) for index in range(5_000)]
    back = peer.call("echo", tensors=arrays).tensors
    assert all(np.array_equal(array, other) for array, other in zip(arrays, back, strict=True))


def test_segments_grow_and_shrink(peer: Peer) -> None:
    for size in (10, 40_000, 300_000, 5_000_000, 20_000_000, *[50_000] * 100, 9_000_000):
        array = np.arange(size, dtype=np.int32)
        assert np.array_equal(peer.call("echo", tensors=[array]).tensors[0], array)


def test_answers_go_into_given_arrays(peer: Peer) -> None:
    array = np.arange(100_000, dtype=np.float32)
    small = np.arange(3, dtype=np.int8)
    target = np.zeros_like(array)
    found = peer.call("echo", tensors=[array, small], into=[target, None]).tensors
    assert found[0] is target
    assert np.array_equal(target, array)
    assert np.array_equal(found[1], small)
    for wrong in (
        [np.zeros(99_999, np.float32)],
        [np.zeros(100_000, np.int32)],
        [np.zeros(200_000, np.float32)[::2]],
        [],
    ):
        with pytest.raises(ProtocolError, match="receive"):
            peer.call("echo", tensors=[array], into=wrong)
    assert peer.call("echo", {"still": "works"}).fields == {"still": "works"}


def test_borrowed_answers_are_read_only_views(far: RemoteListener) -> None:
    array = np.arange(100_000)
    with far.peer(shared_memory=SHARED) as peer:
        response = peer.call("echo", {"a": 1}, [array], lend=True)
        assert response.fields == {"a": 1}
        kept = response.tensors[0]
        del response
        assert not kept.flags.writeable
        # As long as it is in use, its connection serves no other call.
        peer.call("echo", tensors=[np.zeros(1_000_000)])
        assert np.array_equal(kept, array)


@pytest.mark.parametrize("transport", [SHARED, TCP])
def test_the_answer_to_a_call_may_be_fetched_later(far: RemoteListener, transport: bool) -> None:
    arrays = [np.full(1000 * (number + 1), number) for number in range(3)]
    with far.peer(shared_memory=transport) as peer:
        under_way = [peer.begin("echo", {"number": number}, [arrays[number]]) for number in range(3)]
        assert peer.call("echo", {"in": "between"}).fields == {"in": "between"}
        for number, call in reversed(list(enumerate(under_way))):
            assert not call.is_broken()
            answer = call.answer()
            assert answer.fields == {"number": number}
            assert np.array_equal(answer.tensors[0], arrays[number])


def test_an_answer_that_nobody_wants_does_no_harm(far: RemoteListener) -> None:
    with far.peer(shared_memory=SHARED) as peer:
        call = peer.begin("echo", {"a": 1}, [np.ones(100_000)])
        call.abandon()
        assert call.is_broken()
        with pytest.raises(TaskLost):
            call.answer(timeout=5)
        assert peer.call("echo", {"b": 2}).fields == {"b": 2}


def test_a_server_sees_shared_tensors_without_a_copy(far: RemoteListener) -> None:
    array = np.ones(100_000)
    with far.peer(shared_memory=SHARED) as shared, far.peer(shared_memory=TCP) as tcp:
        assert shared.call("total", tensors=[array]).fields == {"owned": False}
        assert tcp.call("total", tensors=[array]).fields == {"owned": True}
        assert shared.call("total", tensors=[array[:10]]).fields == {"owned": True}
        assert shared.call("total", tensors=[array, array]).tensors[0] == 200_000


def test_both_sides_know_each_other(far: RemoteListener) -> None:
    with far.peer(caller="/job:worker/task:7", shared_memory=TCP) as peer:
        found = peer.call("who").fields
        assert found["name"] == "/job:worker/task:7"
        assert found["address"].startswith("127.0.0.1:")
        assert peer.info == {"task": "/job:ps/task:0", "platform": "cpu"}
        assert Peer(far.address).task == far.address


@pytest.mark.parametrize(
    "kind", [VariableNotFound, ProgramRefused, LimitExceeded, DeadlineExceeded, TaskLost]
)
def test_our_errors_arrive_as_themselves(peer: Peer, kind: type[RemoteError]) -> None:
    with pytest.raises(kind, match="it was so") as caught:
        peer.call("fail", {"kind": kind.__name__, "words": "it was so"})
    assert caught.value.task == "/job:ps/task:0"
    assert "remote_listener.py" in (caught.value.remote_traceback or "")
    assert "remote_listener.py" in str(caught.value)
    assert "/job:ps/task:0" in str(caught.value)


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "SystemExit", "KeyboardInterrupt", "MemoryError"])
def test_other_errors_arrive_as_text(peer: Peer, kind: str) -> None:
    with pytest.raises(RemoteCallError, match=f"{kind}: .*it was so") as caught:
        peer.call("fail", {"kind": kind, "words": "it was so"})
    assert f"{kind}" in (caught.value.remote_traceback or "")
    peer.call("who")


def test_an_error_with_half_a_character_arrives(peer: Peer) -> None:
    with pytest.raises(RemoteCallError, match=r"no file .*x"):
        peer.call("half")


def test_an_unknown_call_is_named(peer: Peer) -> None:
    with pytest.raises(ProtocolError, match=r"no such call: 'fetch'.*echo"):
        peer.call("fetch")


def test_what_cannot_be_sent_is_told_here(peer: Peer) -> None:
    for fields, tensors in (
        ({"a": np.float32(1)}, []),
        ({}, [np.array(["text"])]),
        ({}, [np.zeros(40_000, object)]),
    ):
        with pytest.raises(ProtocolError, match="cannot be sent"):
            peer.call("echo", fields, tensors)
    peer.call("who")


def test_more_than_the_far_side_accepts_is_told_here() -> None:
    with (
        RemoteListener(limits={"header_bytes": 1000, "frame_bytes": 1000, "tensors": 3}) as far,
        far.peer() as peer,
    ):
        with pytest.raises(LimitExceeded, match="accepts 1000"):
            peer.call("echo", {"a": "x" * 1000})
        with pytest.raises(LimitExceeded, match="accepts 1000"):
            peer.call("echo", tensors=[np.zeros(1001, np.int8)])
        with pytest.raises(LimitExceeded, match="accepts 3"):
            peer.call("echo", tensors=[np.zeros(1)] * 4)
        peer.call("who")


def test_too_many_connections_are_refused() -> None:
    with (
        RemoteListener(limits={"connections": 1}) as far,
        far.peer(shared_memory=TCP) as one,
        far.peer(shared_memory=TCP) as two,
    ):
        one.call("who")
        with pytest.raises(LimitExceeded, match="as many connections as it allows"):
            two.call("who")
        one.close()
        with far.peer(shared_memory=TCP) as three:
            until("a place is free", lambda: _works(three))


def _works(peer: Peer) -> bool:
    try:
        peer.call("who")
    except LimitExceeded:
        return False
    return True


@pytest.mark.parametrize("shared_memory", [SHARED, TCP], ids=["shared memory", "tcp"])
def test_a_server_holds_no_more_than_two_copies_of_a_tensor(shared_memory: bool) -> None:
    array = np.ones(64 << 20, np.uint8)
    with RemoteListener() as far, far.peer(shared_memory=shared_memory) as peer:
        peer.call("echo", tensors=[array[:1000]])
        before = peak_bytes(far.pid)
        for _ in range(3):
            peer.call("echo", tensors=[array])
        assert peak_bytes(far.pid) - before < 2.2 * array.nbytes


# ------------------------------------------------------------------- deadlines


def test_a_call_that_takes_too_long_says_so(peer: Peer) -> None:
    start = time.monotonic()
    with pytest.raises(
        DeadlineExceeded, match=r"/job:ps/task:0 at 127.0.0.1:\d+ did not answer 'hang' within 0.3 s"
    ):
        peer.call("hang", timeout=0.3)
    assert 0.25 < time.monotonic() - start < 2
    peer.call("who", timeout=5)


def test_a_handler_learns_that_its_caller_has_gone() -> None:
    with RemoteListener() as far, far.peer() as peer:
        with pytest.raises(DeadlineExceeded):
            peer.call("hang", timeout=0.3)
        assert far.process.stdout is not None
        assert far.process.stdout.readline() == "hanging\n"
        assert far.process.stdout.readline() == "abandoned\n"


def test_a_handler_learns_how_long_its_caller_waits() -> None:
    seen: list[float | None] = []

    def note(request: Request) -> Reply:
        seen.append(request.timeout)
        return Reply()

    with Listener("127.0.0.1:0", {"note": note}) as listener, Peer(listener.address) as peer:
        peer.call("note", timeout=7)
        peer.call("note", timeout=math.inf)
    assert seen[0] is not None
    assert 6 < seen[0] <= 7
    assert seen[1] is None


def test_a_task_that_is_not_there() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with Peer(f"127.0.0.1:{bound.getsockname()[1]}", "/job:ps/task:0") as peer:
            with pytest.raises(TaskUnreachable, match=r"/job:ps/task:0 at 127.0.0.1:\d+ .*refused") as caught:
                peer.call("who", wait=False)
            assert caught.value.task == "/job:ps/task:0"
            assert "within" not in str(caught.value)  # there was one attempt, which took no time
            with pytest.raises(TaskUnreachable, match="could not be reached: its caller's time was over"):
                peer.call("who", timeout=0)
            start = time.monotonic()
            with pytest.raises(TaskUnreachable, match=r"could not be reached within 0\.\d s: .*refused"):
                peer.call("who", timeout=0.5)
            assert 0.45 < time.monotonic() - start < 2


def test_a_task_that_takes_connections_and_is_silent() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Peer(f"127.0.0.1:{silent.getsockname()[1]}") as peer,
        pytest.raises(TaskUnreachable),
    ):
        peer.call("who", timeout=0.5)


def test_waiting_for_a_task_that_starts_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stratagem.runtime.wire.waiting.LOG_EVERY", 0.1)
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{bound.getsockname()[1]}"
        with Peer(where, "/job:ps/task:0") as peer, ThreadPoolExecutor() as threads:
            with caplog.at_level(logging.WARNING, "stratagem"):
                calls = [threads.submit(peer.call, "echo", {"n": n}, timeout=20) for n in range(4)]
                until("the log tells", lambda: caplog.messages)
            assert "waiting for /job:ps/task:0 at " + where in caplog.messages[0]
            assert "refused" in caplog.messages[0]
            late = bind(address_at(where), share_port=True)
            with Listener(late, {"echo": lambda request: Reply(request.fields)}):
                assert [call.result(10).fields["n"] for call in calls] == [0, 1, 2, 3]


def test_closing_a_peer_ends_its_waiting() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        peer = Peer(f"127.0.0.1:{bound.getsockname()[1]}")
        with ThreadPoolExecutor() as threads:
            call = threads.submit(peer.call, "who", timeout=60)
            peer.close()
            with pytest.raises(TaskLost, match="closed on this side"):
                call.result(5)


# ------------------------------------------------------------ many at a time


def test_ten_thousand_calls_from_32_threads(far: RemoteListener) -> None:
    before = descriptors()
    with far.peer() as peer:

        def run(thread: int) -> int:
            right = 0
            random = np.random.default_rng(thread)
            for call in range(10_000 // 32 + 1):
                size = int(random.choice([0, 1, 100, 10_000, 40_000]))
                array = random.integers(0, 100, size, np.int32)
                response = peer.call("echo", {"thread": thread, "call": call}, [array], timeout=60)
                right += response.fields == {"thread": thread, "call": call} and bool(
                    np.array_equal(response.tensors[0], array)
                )
            return right

        with ThreadPoolExecutor(32) as threads:
            assert sum(threads.map(run, range(32))) == 32 * 313
    until("descriptors are closed", lambda: descriptors() == before)


def test_a_forked_child_makes_connections_of_its_own(peer: Peer) -> None:
    assert peer.call("echo", {"who": "parent"}).fields == {"who": "parent"}
    child = fork()
    if child == 0:
        # Nothing of pytest's may run in the child, whatever happens.
        code = 1
        try:
            right = all(peer.call("echo", {"n": n}).fields == {"n": n} for n in range(200))
            code = 0 if right else 2
        finally:
            os._exit(code)
    for n in range(200):
        assert peer.call("echo", {"n": -n}).fields == {"n": -n}
    assert os.waitpid(child, 0)[1] == 0


def test_a_restarted_task_is_found_again() -> None:
    with RemoteListener() as far:
        peer = far.peer()
        pid = peer.call("who").fields["pid"]
        where = far.address
    with RemoteListener(where=where), peer:
        assert peer.call("who").fields["pid"] != pid


# --------------------------------------------------------------- the listener


def test_shared_memory_can_be_turned_off_on_either_side(
    monkeypatch: pytest.MonkeyPatch, far: RemoteListener
) -> None:
    monkeypatch.setenv("STRATAGEM_SHM", "off")
    with far.peer() as peer:
        peer.call("who")
        assert peer.transport == "tcp"
    monkeypatch.delenv("STRATAGEM_SHM")
    with RemoteListener(environ={"STRATAGEM_SHM": "off"}) as other, other.peer() as peer:
        peer.call("echo", tensors=[np.zeros(100_000)])
        assert peer.transport == "tcp"


def test_stop_ends_calls_under_way_and_closes_everything() -> None:
    before = descriptors()
    entered = threading.Event()

    def wait(request: Request) -> Reply:
        entered.set()
        while not request.is_abandoned():
            time.sleep(0.005)
        return Reply()

    listener = Listener("127.0.0.1:0", credentials=Credentials("s"))
    listener.register("wait", wait)
    listener.start()
    with Peer(listener.address, credentials=Credentials("s")) as peer, ThreadPoolExecutor() as threads:
        call = threads.submit(peer.call, "wait", timeout=30)
        assert entered.wait(10)
        assert listener.stop()
        with pytest.raises(TaskLost):
            call.result(5)
        with pytest.raises(TaskUnreachable):
            peer.call("wait", wait=False)
    assert listener.stop()
    assert not [thread.name for thread in threading.enumerate() if "stratagem" in thread.name]
    until("descriptors are closed", lambda: descriptors() == before)


def test_a_socket_can_be_handed_over() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    where = f"127.0.0.1:{bound.getsockname()[1]}"
    with Listener(bound, {"echo": lambda request: Reply(request.fields)}) as listener, Peer(where) as peer:
        assert str(listener.address) == where
        assert peer.call("echo", {"a": 1}).fields == {"a": 1}


def test_a_listener_out_of_descriptors_goes_on() -> None:
    with RemoteListener() as far, far.peer() as peer:
        peer.call("who")
        resource.prlimit(far.pid, resource.RLIMIT_NOFILE, (descriptors(far.pid), 4096))
        strangers = [
            socket.create_connection(("127.0.0.1", int(far.address.rpartition(":")[2]))) for _ in range(5)
        ]
        far.expect_log("cannot accept connections")
        peer.call("who", timeout=5)
        resource.prlimit(far.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        with far.peer() as another:
            another.call("who", timeout=10)
        for stranger in strangers:
            stranger.close()


def test_status_counts() -> None:
    with Listener("127.0.0.1:0", {"echo": lambda request: Reply({}, request.tensors)}) as listener:
        with Peer(listener.address) as peer:
            peer.call("echo", tensors=[np.zeros(100_000, np.int8)])
            with pytest.raises(ProtocolError):
                peer.call("nonsense")
            # A call is counted once its answer is out.
            until("both calls are counted", lambda: len(listener.status().calls) == 2)
            # The first connection is over the network; it goes when this host turns out to be the same.
            until("one connection is left", lambda: listener.status().connections == 1)
            found = listener.status()
            assert found.calls == {"echo": 1, "unknown": 1}
            assert found.failures == 1
            assert 100_000 < found.bytes_in < 101_000
            assert 100_000 < found.bytes_out < 104_000
            assert "nonsense" in (found.last_error or "")
        until("the connection is gone", lambda: listener.status().connections == 0)
