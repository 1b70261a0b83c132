"""Round trips over the wire against bare loops that move the same bytes, in one run, alternating.

    python -m benchmarks.wire [--rounds 12] [--json]

A round trip is: the client sends, the server copies into its own array and sends that back, the client has
it in its own array. The bare loops do just that, with the same number of copies, and nothing else: no names,
no checks, no deadlines. What counts are the ratios within rounds.
"""

import json
import mmap
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.racing.taking_turns import Times, rounds_wanted, show, take_turns
from stratagem.runtime.wire import Credentials, Listener, Peer, Reply, Request
from stratagem.runtime.wire.arrays import Array

ROOT = Path(__file__).parents[1]
SIZES = {"1.6 MB": 1_600_000, "64 MB": 64_000_000}
SECRET = Credentials(secrets.token_hex(16))
SECONDS_PER_CASE, ROUNDS = 2.0, 12
TARGETS = {
    ("shared memory", "1.6 MB"): 2.0,
    ("shared memory", "64 MB"): 1.2,
    ("tcp", "1.6 MB"): 1.3,
    ("tcp", "64 MB"): 1.3,
}
EMPTY_TARGET_MICROSECONDS = 150.0


# --------------------------------------------------------------- the servers


def serve_wire(secret: str) -> None:
    """Keep each received array in an own array, and send that back, by a listener."""
    own: dict[int, Array] = {}

    def echo(request: Request) -> Reply:
        if not request.tensors:
            return Reply()
        sent = request.tensors[0]
        if request.owned:
            return Reply({}, [sent])
        kept = own.setdefault(sent.nbytes, np.empty_like(sent))
        np.copyto(kept, sent)
        return Reply({}, [kept])

    with Listener("127.0.0.1:0", {"echo": echo}, credentials=Credentials(secret)) as listener:
        print(listener.address, flush=True)
        sys.stdin.read()


def serve_bare_memory(control: int, incoming: int, outgoing: int, size: int) -> None:
    """Copy from one segment to an own array and on to the other, at each byte over a socket."""
    sock = socket.socket(fileno=control)
    source, target = mapped(incoming, size), mapped(outgoing, size)
    own = np.empty(size, np.uint8)
    own[:] = 0
    while sock.recv(1):
        np.copyto(own, source)
        np.copyto(target, own)
        sock.send(b"x")


def serve_bare_tcp(size: int) -> None:
    """Receive a number of bytes into an own array and send them back, repeatedly."""
    own = memoryview(np.zeros(size, np.uint8))
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        sock, _ = server.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while receive(sock, own):
                sock.sendall(own)


def receive(sock: socket.socket, view: memoryview) -> bool:
    while view:
        count = sock.recv_into(view)
        if count == 0:
            return False
        view = view[count:]
    return True


def mapped(descriptor: int, size: int) -> Array:
    return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)


# --------------------------------------------------------------- the clients


@contextmanager
def process(*arguments: object, descriptors: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=descriptors,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def bare_memory(stack: ExitStack, size: int) -> Callable[[], object]:
    sock, far = socket.socketpair()
    segments = [os.memfd_create("bare") for _ in range(2)]
    for segment in segments:
        os.ftruncate(segment, size)
    stack.enter_context(
        process("memory", far.fileno(), *segments, size, descriptors=(far.fileno(), *segments))
    )
    far.close()
    stack.enter_context(closing(sock))
    outgoing, incoming = (mapped(segment, size) for segment in segments)
    for segment in segments:
        os.close(segment)
    data, answer = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    def round_trip() -> None:
        np.copyto(outgoing, data)
        sock.send(b"x")
        sock.recv(1)
        np.copyto(answer, incoming)

    return round_trip


def bare_tcp(stack: ExitStack, size: int) -> Callable[[], object]:
    child = stack.enter_context(process("tcp", size))
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", int(first_line(child)))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data, answer = memoryview(np.ones(size, np.uint8)), memoryview(np.zeros(size, np.uint8))

    def round_trip() -> None:
        sock.sendall(data)
        receive(sock, answer)

    return round_trip


def first_line(child: subprocess.Popen[str]) -> str:
    return child.stdout.readline() if child.stdout else ""


def over_wire(peer: Peer, size: int, fresh: bool = False) -> Callable[[], object]:
    data, answer = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    into = None if fresh else [answer]
    return lambda: peer.call("echo", tensors=[data], into=into)


# --------------------------------------------------------------- measuring


def in_turns(acts: dict[str, Callable[[], object]]) -> Times:
    """Return the times of functions that take turns."""
    return take_turns(acts, rounds_wanted(ROUNDS), SECONDS_PER_CASE)


def measure() -> list[dict[str, Any]]:
    lines = []
    with ExitStack() as stack:
        address = first_line(stack.enter_context(process("wire", SECRET.secret))).strip()
        peers = {
            "shared memory": stack.enter_context(Peer(address, credentials=SECRET, shared_memory=True)),
            "tcp": stack.enter_context(Peer(address, credentials=SECRET, shared_memory=False)),
        }
        with ExitStack() as inner:
            found = in_turns(
                {
                    "bare": bare_memory(inner, 1),
                    "shared memory": lambda: peers["shared memory"].call("echo"),
                    "tcp": lambda: peers["tcp"].call("echo"),
                }
            )
        lines.append(
            found.compare("an empty call", "shared memory", most_microseconds=EMPTY_TARGET_MICROSECONDS)
        )
        lines.append(found.compare("an empty call", "tcp"))
        for label, size in SIZES.items():
            for name, bare in (("shared memory", bare_memory), ("tcp", bare_tcp)):
                with ExitStack() as inner:
                    found = in_turns(
                        {
                            "bare": bare(inner, size),
                            name: over_wire(peers[name], size),
                            f"{name}, new arrays": over_wire(peers[name], size, fresh=True),
                        }
                    )
                lines.append(found.compare(label, name, most=TARGETS[name, label]))
                lines.append(found.compare(label, f"{name}, new arrays"))
    return lines


def main() -> None:
    lines = measure()
    if "--json" in sys.argv:
        print(json.dumps(lines))
    else:
        show(lines)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["wire", secret]:
            serve_wire(secret)
        case ["memory", *numbers]:
            serve_bare_memory(*map(int, numbers))
        case ["tcp", size]:
            serve_bare_tcp(int(size))
        case _:
            main()
