"""Messages that come in pieces, wherever the network has cut them."""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from stratagem.runtime.wire import Limits
from stratagem.runtime.wire.channels import Channel, Message
from stratagem.runtime.wire.sockets import Stream
from stratagem.runtime.wire.waiting import Deadline

SECONDS = 20.0
TENSOR = np.arange(6, dtype=np.int16).reshape(2, 3)


def said(count: int) -> bytes:
    """The bytes of so many messages, one after the other."""
    near, far = socket.socketpair()
    with near, far:
        channel, data = Channel(Stream(near), Limits()), b""
        for number in range(count):
            channel.send("echo", {"number": number}, [TENSOR, TENSOR[:0]], Deadline(SECONDS))
            data += far.recv(1 << 16)
        return data


def heard(pieces: Sequence[bytes], count: int) -> list[Message]:
    """The messages that a channel makes of bytes that come in exactly these pieces."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps the pieces apart
    far.settimeout(SECONDS)
    with near, far, ThreadPoolExecutor(1) as sender:
        sending = sender.submit(lambda: [far.send(piece) for piece in pieces])
        channel = Channel(Stream(near), Limits())
        messages = [channel.receive(Deadline(SECONDS), Deadline(SECONDS)) for _ in range(count)]
        assert sending.result(SECONDS) == [len(piece) for piece in pieces]
        return messages


def check(messages: Sequence[Message]) -> None:
    for number, message in enumerate(messages):
        assert (message.subject, message.fields) == ("echo", {"number": number})
        assert [tensor.tolist() for tensor in message.tensors] == [TENSOR.tolist(), []]


def test_two_pieces() -> None:
    whole = said(2)
    for cut in range(1, len(whole)):
        check(heard([whole[:cut], whole[cut:]], 2))


def test_byte_by_byte() -> None:
    whole = said(2)
    check(heard([whole[place : place + 1] for place in range(len(whole))], 2))


def test_pieces_that_pass_the_end_of_the_buffer() -> None:
    count = 2000
    whole = said(count)
    assert len(whole) > 2 * (64 << 10)
    for size in (1000, 1021, len(whole) // count):
        check(heard([whole[start : start + size] for start in range(0, len(whole), size)], count))
