"""A listener is sent a hundred thousand frames that are wrong in every way, and then works as before."""

import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest

from drills.processes import descriptors, until
from drills.remote_listener import RemoteListener, resident_bytes
from stratagem.runtime.wire import Limits, Peer
from stratagem.runtime.wire.addresses import address_at
from stratagem.runtime.wire.channels import Channel
from stratagem.runtime.wire.credentials import Credentials
from stratagem.runtime.wire.dialing import Connection, Dialer
from stratagem.runtime.wire.frames import INLINE, MAGIC, PREFIX
from stratagem.runtime.wire.waiting import Deadline

MEMBERS_FRAMES, STRANGERS_FRAMES = 94_000, 6_000
FRAMES_PER_CONNECTION = 200
MEMORY_GROWTH = 48 << 20
SEED = 20_260_101


class Frames:
    """Frames of all kinds, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def good(self) -> bytes:
        """A frame as it should be."""
        tensors, payload = [], b""
        for _ in range(self.random.randrange(3)):
            shape = [self.random.randrange(4) for _ in range(self.random.randrange(3))]
            tensors.append(["int16", shape, INLINE])
            payload += b"\1\0" * int(np.prod(shape))
        fields = {"a": self.random.randrange(1000), "b": ["text", b"bytes", None, 1.5, {"c": True}]}
        return self.framed(msgpack.packb(["echo", fields, tensors, 5.0, 0]), payload)

    def framed(self, header: bytes, payload: bytes = b"") -> bytes:
        return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload

    def within_bounds(self) -> bytes:
        """Wrong, but where the next frame begins is clear."""
        kind = self.random.randrange(6)
        if kind == 0:
            return self.framed(self.random.randbytes(self.random.randrange(100)))
        if kind == 1:
            return self.framed(self.random.randbytes(self.random.randrange(40)), self.random.randbytes(50))
        if kind == 2:
            return self.framed(msgpack.packb(["echo", {}, [self.tensor()], None, 0]), b"12345678")
        if kind == 3:
            depth = self.random.randrange(1, 600)
            return self.framed(self.random.choice([b"\x91", b"\x81\xa1a"]) * depth + b"\x01")
        if kind == 4:
            huge = self.random.choice([b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"]) + b"\xff\xff\xff\xff"
            return self.framed(huge * self.random.randrange(1, 20))
        frame = bytearray(self.good())
        lengths = PREFIX.size
        for _ in range(self.random.randrange(1, 5)):
            frame[self.random.randrange(lengths, len(frame))] ^= 1 << self.random.randrange(8)
        return bytes(frame)

    def tensor(self) -> list[object]:
        choose = self.random.choice
        sizes: list[object] = [0, 1, 2, 4, -1, 2**31, 2**62, 2**63, 1.5, None, "3", True, []]
        return [
            choose(["int8", "float64", "bool", "bfloat16", "object", "O", "", None, 7, "int16" * 50]),
            choose([[choose(sizes) for _ in range(self.random.randrange(4))], [1] * 70, "shape", None, 8]),
            choose([INLINE, 0, 64, 63, -2, 2**40, 2**64 - 1, None, "0", 1.0]),
        ]

    def out_of_bounds(self) -> bytes:
        """Wrong in such a way that what follows cannot be told apart."""
        kind = self.random.randrange(6)
        if kind == 0:
            return self.random.randbytes(self.random.randrange(1, 200))
        if kind == 1:
            return PREFIX.pack(MAGIC, self.random.randrange(2**32), self.random.randrange(2**64))
        if kind == 2:
            return PREFIX.pack(MAGIC, self.random.randrange(2**20), self.random.randrange(2**33)) + b"x" * 100
        frame = bytearray(self.good())
        if kind == 3:
            return bytes(frame[: self.random.randrange(len(frame))])
        if kind == 4:
            frame[self.random.randrange(PREFIX.size)] ^= 1 << self.random.randrange(8)
            return bytes(frame)
        return b"GET / HTTP/1.1\r\nHost: stratagem\r\n\r\n"


@pytest.fixture
def far() -> Iterator[RemoteListener]:
    with RemoteListener(limits={"handshake_seconds": 5.0, "frame_bytes": 1 << 26}) as far:
        yield far


def dial(far: RemoteListener, shared_memory: bool) -> Connection:
    credentials = Credentials(far.settings["secret"])
    dialer = Dialer(address_at(far.address), credentials, None, "fuzz", Limits(), shared_memory)
    return dialer.dial(Deadline(20))


def test_members_who_send_nonsense(far: RemoteListener) -> None:
    frames = Frames(SEED)
    with far.peer() as peer:
        peer.call("who")
        baseline = 0
        answers: Counter[str] = Counter()
        for batch in range(MEMBERS_FRAMES // FRAMES_PER_CONNECTION):
            channel = dial(far, shared_memory=batch % 2 == 0).channel
            whole = FRAMES_PER_CONNECTION - 1
            said = [
                frames.good() if frames.random.random() < 0.1 else frames.within_bounds()
                for _ in range(whole)
            ]
            answers.update(answers_to(channel, [*said, frames.out_of_bounds()], whole))
            if batch == 50:
                baseline = resident_bytes(far.pid)
        assert_as_before(far, peer, baseline)
    assert answers["ok"] > MEMBERS_FRAMES // 20
    assert answers["failed"] > MEMBERS_FRAMES // 2


def answers_to(channel: Channel, said: list[bytes], whole: int) -> list[str]:
    """How the first frames, whose bounds are clear, were answered; the last one may never be."""
    channel.stream.send([memoryview(b"".join(said))], Deadline(20))
    answers = [channel.receive(Deadline(20), Deadline(20)).subject for _ in range(whole)]
    channel.close()
    return answers


def test_strangers_who_send_nonsense(far: RemoteListener) -> None:
    frames = Frames(SEED + 1)
    where = address_at(far.address)
    with far.peer() as peer:
        peer.call("who")
        baseline = 0
        for number in range(STRANGERS_FRAMES):
            with socket.create_connection((where.host, where.port), 10) as sock:
                # Ends with a reset, so that no port is left waiting.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                make = frames.random.choice([frames.good, frames.within_bounds, frames.out_of_bounds])
                with suppress(OSError):
                    sock.sendall(make())
                    if number % 100 == 0:
                        sock.shutdown(socket.SHUT_WR)
                        while sock.recv(4096):
                            pass
            if number == 500:
                baseline = resident_bytes(far.pid)
        assert_as_before(far, peer, baseline)


def test_descriptors_nobody_asked_for(far: RemoteListener) -> None:
    """Of files, pipes and memory that could be cut short; one, many, announced or not, in any frame."""
    frames = Frames(SEED + 2)
    with far.peer() as peer:
        peer.call("who")
        before = descriptors(far.pid)
        for number in range(400):
            channel = dial(far, shared_memory=True).channel
            memory = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
            os.ftruncate(memory, 1 << 16)
            null = os.open("/dev/null", os.O_RDWR)
            chosen = frames.random.choices([memory, null], k=1 + number % 3)
            header: list[object] = [
                "echo",
                {},
                [["int8", [40_000], 0]],
                None,
                frames.random.choice([0, 1 << 16, 1 << 50]),
            ]
            frame = frames.random.choice([frames.good(), frames.framed(msgpack.packb(header))])
            sock = socket.socket(fileno=os.dup(channel.stream._sock.fileno()))
            with sock, suppress(OSError):
                socket.send_fds(sock, [frame], chosen)
                socket.send_fds(sock, [frame], [memory])
                os.ftruncate(memory, 0)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65_536):
                    pass
            os.close(memory)
            os.close(null)
            channel.close()
        until("descriptors are back", lambda: descriptors(far.pid) <= before)
        assert_as_before(far, peer, 0)


def assert_as_before(far: RemoteListener, peer: Peer, baseline: int) -> None:
    """It answers, rightly, and holds no more than it did."""
    array = np.arange(100_000)
    assert np.array_equal(peer.call("echo", tensors=[array], timeout=20).tensors[0], array)
    until("all others are gone", lambda: peer.call("status").fields["connections"] == 1, 20)
    until("strangers too", lambda: peer.call("status").fields["strangers"] == 0, 20)
    # Standard streams, two listening sockets, the waker's pair, the selector, and this one connection.
    until("descriptors are closed", lambda: descriptors(far.pid) <= 13, 20)
    until("threads have ended", lambda: len(list(Path(f"/proc/{far.pid}/task").iterdir())) <= 8, 20)
    if baseline:
        assert resident_bytes(far.pid) - baseline < MEMORY_GROWTH
    with far.peer() as another:
        assert another.call("echo", {"well": 1}).fields == {"well": 1}
    assert "Traceback" not in far.log


def test_the_count() -> None:
    assert MEMBERS_FRAMES + STRANGERS_FRAMES >= 100_000
    assert MEMBERS_FRAMES % FRAMES_PER_CONNECTION == 0
