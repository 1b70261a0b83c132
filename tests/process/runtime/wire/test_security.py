"""Who does not belong is kept out, is told why, and cannot stand in the way of those who do."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from drills.processes import descriptors, fork, until
from drills.remote_listener import SECRET, RemoteListener
from process.runtime.wire.certificates import Authority
from stratagem.errors import AuthenticationError, ProtocolError, RemoteError, TaskLost
from stratagem.runtime.wire import PROTOCOL, TLS, Credentials, Limits, Listener, Peer, Reply
from stratagem.runtime.wire.addresses import address_at
from stratagem.runtime.wire.channels import Channel, Message
from stratagem.runtime.wire.dialing import Dialer
from stratagem.runtime.wire.frames import INLINE, MAGIC, PREFIX, pack
from stratagem.runtime.wire.limits import BEFORE_AUTHENTICATION
from stratagem.runtime.wire.sockets import Stream
from stratagem.runtime.wire.waiting import Deadline


@pytest.fixture(scope="module")
def far() -> Iterator[RemoteListener]:
    with RemoteListener() as far:
        yield far


def connect(far: RemoteListener) -> socket.socket:
    host, _, port = far.address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


@contextmanager
def stranger(far: RemoteListener) -> Iterator[Channel]:
    channel = Channel(Stream(connect(far)), BEFORE_AUTHENTICATION)
    try:
        yield channel
    finally:
        channel.close()


def receive(channel: Channel) -> Message:
    deadline = Deadline(10)
    return channel.receive(deadline, deadline)


def send(channel: Channel, subject: str, **fields: object) -> None:
    channel.send(subject, fields, (), Deadline(10))


@contextmanager
def impostor(serve: Callable[[Channel], object]) -> Iterator[str]:
    """A server that is none of ours, for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            channel = Channel(Stream(listening.accept()[0]), BEFORE_AUTHENTICATION)
            try:
                serve(channel)
            except RemoteError:
                pass
            finally:
                channel.close()

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive()


# --------------------------------------------------------------------- secrets


def test_a_wrong_secret_is_told_on_both_sides(far: RemoteListener) -> None:
    with far.peer("another secret") as peer:
        start = time.monotonic()
        with pytest.raises(
            AuthenticationError, match=r"another secret: set STRATAGEM_SECRET.*on both"
        ) as caught:
            peer.call("who", timeout=20)
        assert 0.15 < time.monotonic() - start < 5, "a little delay, and no waiting for better times"
    assert caught.value.task == "/job:ps/task:0"
    assert "/job:ps/task:0 at 127.0.0.1" in str(caught.value)
    assert peer.info == {}, "nothing is told to a stranger"
    far.expect_log("does not know the secret")
    assert "refused a connection from 127.0.0.1:" in far.log


def test_one_side_without_a_secret(far: RemoteListener) -> None:
    with (
        far.peer(None) as peer,
        pytest.raises(AuthenticationError, match="this side has none: set STRATAGEM_SECRET"),
    ):
        peer.call("who")
    with RemoteListener(secret=None) as open_one:
        with (
            open_one.peer() as peer,
            pytest.raises(AuthenticationError, match="far side has none: set STRATAGEM"),
        ):
            peer.call("who")
        open_one.expect_log("it has a secret and this server has none")
        with open_one.peer(None) as peer:
            peer.call("who")


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    def pretend(channel: Channel) -> None:
        receive(channel)
        send(channel, "hello", protocol=PROTOCOL, role="server", nonce=os.urandom(32), secret=True)
        proof = receive(channel)
        send(channel, "welcome", body=proof.fields["body"], mac=proof.fields["mac"])
        receive(channel)

    with (
        impostor(pretend) as address,
        Peer(address, credentials=Credentials(SECRET)) as peer,
        pytest.raises(AuthenticationError, match="does not know this cluster's secret"),
    ):
        peer.call("who")


def test_what_is_no_server_of_ours_is_told_as_such() -> None:
    def greet(channel: Channel) -> None:
        banner = memoryview(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        channel.stream.send([banner], Deadline(10))
        receive(channel)

    with (
        impostor(greet) as address,
        Peer(address, "/job:ps/task:0") as peer,
        pytest.raises(
            ProtocolError, match=r"no server of Stratagem answers there: bytes that are not a frame: .*'SSH-'"
        ),
    ):
        peer.call("who")


def test_a_handshake_cannot_be_played_again(far: RemoteListener) -> None:
    """What went from client to server in a good connection, the call included, is sent once more."""
    recorded = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def relay() -> None:
            near, there = listening.accept()[0], connect(far)

            def backwards() -> None:
                while data := there.recv(65_536):
                    near.sendall(data)

            other_way = threading.Thread(target=backwards)
            other_way.start()
            while data := near.recv(65_536):
                recorded.extend(data)
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)
            other_way.join()
            near.close()
            there.close()

        thread = threading.Thread(target=relay)
        thread.start()
        where = f"127.0.0.1:{listening.getsockname()[1]}"
        with Peer(where, credentials=Credentials(SECRET), shared_memory=False) as peer:
            peer.call("echo", {"good": 1})
        thread.join(10)
    assert b"echo" in recorded
    with connect(far) as sock:
        sock.sendall(recorded)
        answered = bytearray()
        while data := sock.recv(65_536):
            answered.extend(data)
    assert b"refused" in answered
    assert b"welcome" not in answered
    assert b"good" not in answered


def test_a_proof_cannot_be_turned_against_the_one_who_gave_it(far: RemoteListener) -> None:
    """A client's proof, sent back as if it were the server's, and a server's hello answered with itself."""
    with stranger(far) as channel:
        send(channel, "hello", protocol=PROTOCOL, role="client", nonce=os.urandom(32), secret=True)
        hello = receive(channel)
        send(channel, "proof", body=b"\x80", mac=hello.fields["nonce"])
        with pytest.raises(AuthenticationError):
            raise_refusal(receive(channel))
        with pytest.raises(TaskLost):
            receive(channel)


def raise_refusal(message: Message) -> None:
    assert message.subject == "refused"
    raise AuthenticationError(str(message.fields))


@pytest.mark.parametrize("subject", ["proof", "welcome", "echo", "who", "", "hello" * 100])
def test_nothing_is_answered_before_the_handshake(far: RemoteListener, subject: str) -> None:
    with stranger(far) as channel:
        send(channel, subject, body=b"", mac=b"")
        with pytest.raises(TaskLost):
            receive(channel)


# ------------------------------------------------------------------- versions


@pytest.mark.parametrize("version", [0, PROTOCOL + 1, "one", None])
def test_another_version_is_told_on_both_sides(far: RemoteListener, version: object) -> None:
    with stranger(far) as channel:
        send(channel, "hello", protocol=version, role="client", nonce=os.urandom(32), secret=True)
        assert receive(channel).fields["protocol"] == PROTOCOL
        with pytest.raises(TaskLost):
            receive(channel)

    def old(channel: Channel) -> None:
        receive(channel)
        send(channel, "hello", protocol=version)

    words = f"speaks protocol version {version!r}, this side {PROTOCOL}"
    with impostor(old) as address, Peer(address) as peer, pytest.raises(ProtocolError, match=words):
        peer.call("who")


def test_the_server_logs_both_versions() -> None:
    with RemoteListener() as far, stranger(far) as channel:
        send(channel, "hello", protocol=77, role="client", nonce=os.urandom(32), secret=True)
        far.expect_log(f"the far side speaks protocol version 77, this side {PROTOCOL}")


# ------------------------------------------------------------------ strangers


def test_a_silent_stranger_is_dropped() -> None:
    with RemoteListener(limits={"handshake_seconds": 0.3}) as far:
        with connect(far) as silent:
            assert silent.recv(1) == b""
        far.expect_log("no progress in time")


def test_a_stranger_who_sends_byte_by_byte_is_dropped() -> None:
    with RemoteListener(limits={"handshake_seconds": 0.5}) as far, connect(far) as slow:
        start = time.monotonic()
        slow.settimeout(0.05)
        dropped = False
        while not dropped and time.monotonic() - start < 5:
            try:
                slow.send(b"S")
                dropped = slow.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                dropped = True
        assert 0.4 < time.monotonic() - start < 2


def test_a_probe_of_the_port_is_nothing_to_warn_of() -> None:
    with RemoteListener() as far, far.peer() as peer:
        for _ in range(20):
            connect(far).close()
        until("they are gone", lambda: peer.call("status").fields["strangers"] == 0)
        assert far.log == ""


@pytest.mark.parametrize("part", [3, PREFIX.size, PREFIX.size + 5, -1])
def test_a_member_who_stops_in_the_middle_of_a_frame_is_dropped(part: int) -> None:
    """And what it sends later is not taken for the beginning of something."""
    header = pack(("echo", {}, [("int8", (10,), INLINE)], None, 0))
    frame = PREFIX.pack(MAGIC, len(header), 10) + header + b"\0" * 10
    with RemoteListener(limits={"stall_seconds": 0.3}) as far, far.peer() as peer:
        peer.call("who")
        credentials = Credentials(SECRET)
        dialer = Dialer(address_at(far.address), credentials, None, "slow", Limits(), False)
        channel = dialer.dial(Deadline(10)).channel
        channel.stream.send([memoryview(frame[:part])], Deadline(10))
        assert receive(channel).subject == "failed"
        with pytest.raises(TaskLost):
            receive(channel)
        channel.close()
        peer.call("who")


def test_strangers_cannot_keep_members_out() -> None:
    with RemoteListener(limits={"strangers": 8}) as far, ExitStack() as stack, far.peer() as early:
        early.call("who")
        before = descriptors(far.pid)
        for _ in range(200):
            stack.enter_context(connect(far))
        with far.peer() as late:
            late.call("who", timeout=10)
            early.call("who", timeout=10)
            until("only so many are kept", lambda: late.call("status").fields["strangers"] <= 8)
            assert descriptors(far.pid) <= before + 8 + 8
        stack.close()
        until("all are gone", lambda: early.call("status").fields["strangers"] == 0)
        until("their descriptors too", lambda: descriptors(far.pid) <= before)


def test_another_user_of_this_host_gets_no_shared_memory_without_a_secret() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with Listener("127.0.0.1:0", {"echo": lambda request: Reply(request.fields)}) as listener:
        child = fork()
        if child == 0:
            code = 1
            try:
                os.setuid(65_534)
                with Peer(listener.address) as peer:
                    peer.call("echo", timeout=10)
                    code = 0 if peer.transport == "tcp" else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


# ------------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> tuple[str, str, str]:
    return authority.issue("server")


@pytest.fixture(scope="module")
def secure(server_files: tuple[str, str, str]) -> Iterator[RemoteListener]:
    with RemoteListener(tls=server_files) as far:
        yield far


def tls_peer(
    far: RemoteListener, tls: TLS | None, secret: str | None = SECRET, shared_memory: bool = False
) -> Peer:
    return Peer(far.address, "/job:ps/task:0", Credentials(secret, tls), shared_memory=shared_memory)


def test_tls_carries_everything(secure: RemoteListener, authority: Authority) -> None:
    arrays = [np.arange(size, dtype=np.int32) for size in (0, 1, 1000, 100_000, 3_000_000)]
    with tls_peer(secure, TLS(authority.ca)) as peer:
        for _ in range(3):
            back = peer.call("echo", {"a": 1}, arrays).tensors
            assert all(np.array_equal(one, other) for one, other in zip(arrays, back, strict=True))
        assert peer.transport == "tls"
        assert peer.call("status").fields["connections"] == 1, "idle connections are used again"


def test_with_tls_one_host_still_uses_shared_memory(secure: RemoteListener, authority: Authority) -> None:
    with tls_peer(secure, TLS(authority.ca), shared_memory=True) as peer:
        peer.call("who")
        assert peer.transport == "shared memory"


def test_plain_client_and_tls_server(secure: RemoteListener) -> None:
    with (
        tls_peer(secure, None) as peer,
        pytest.raises(AuthenticationError, match="speaks TLS only: set STRATAGEM_TLS_CA"),
    ):
        peer.call("who")
    secure.expect_log("does not speak TLS")


def test_tls_client_and_plain_server(authority: Authority) -> None:
    with RemoteListener() as far:
        words = "does not speak TLS: start it with tls="
        with tls_peer(far, TLS(authority.ca)) as peer, pytest.raises(AuthenticationError, match=words):
            peer.call("who")
        far.expect_log("it speaks TLS and this server has no certificate")


def test_a_certificate_of_another_authority(secure: RemoteListener, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with (
        tls_peer(secure, TLS(other.ca)) as peer,
        pytest.raises(AuthenticationError, match=r"do not fit.*CERTIFICATE"),
    ):
        peer.call("who")
    secure.expect_log("TLS: ")
    mixed = TLS(secure.settings["tls"][0], *other.issue("client")[1:])
    with tls_peer(secure, mixed) as peer, pytest.raises(AuthenticationError, match="its CA has signed"):
        peer.call("who", wait=False)


def test_tls_does_not_replace_the_secret(secure: RemoteListener, authority: Authority) -> None:
    tls = TLS(*authority.issue("client"))
    with tls_peer(secure, tls, "wrong") as peer, pytest.raises(AuthenticationError, match="another secret"):
        peer.call("who")
    with tls_peer(secure, tls) as peer:
        peer.call("who")


def test_without_a_secret_clients_must_show_a_certificate(
    authority: Authority, server_files: tuple[str, str, str]
) -> None:
    with RemoteListener(secret=None, tls=server_files) as far:
        with tls_peer(far, TLS(*authority.issue("member")), None) as peer:
            peer.call("who")
        with (
            tls_peer(far, TLS(authority.ca), None) as peer,
            pytest.raises(AuthenticationError, match="wants a certificate that its CA has signed"),
        ):
            peer.call("who", wait=False)


def test_one_in_the_middle_with_a_certificate_of_its_own_is_found_out(
    secure: RemoteListener, authority: Authority
) -> None:
    """Signed by the same authority, it passes on every byte between the two TLS connections that it makes."""
    own = TLS(*authority.issue("middle"))

    def middle(near: Channel) -> None:
        near.stream.secure(own.server_context(True), True, Deadline(10))
        with stranger(secure) as there:
            there.stream.secure(TLS(authority.ca).client_context(), False, Deadline(10))
            for source, target in ((near, there), (there, near), (near, there), (there, near)):
                message = receive(source)
                send(target, message.subject, **message.fields)

    with (
        impostor(middle) as address,
        Peer(address, credentials=Credentials(SECRET, TLS(authority.ca))) as peer,
        pytest.raises(AuthenticationError, match="another secret"),
    ):
        peer.call("who")


MOUNTED = """
import logging, os, subprocess, sys
from stratagem.runtime.wire.credentials import read_secret_file

place = sys.argv[1]
mount = ["mount", "-t", "tmpfs", "-o"]
if subprocess.run([*mount, "mode=755", "tmpfs", place]).returncode:
    sys.exit("cannot mount")
path = os.path.join(place, "secret")
with open(path, "w") as file:
    file.write("pepper")
for mode in (0o440, 0o644):
    subprocess.run(["mount", "-o", "remount,rw", place], check=True)
    os.chmod(path, mode)
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    print(oct(mode), read_secret_file(path, "STRATAGEM_SECRET_FILE"), flush=True)
"""


def test_a_secret_that_is_mounted_for_a_container(tmp_path: Path) -> None:
    """As by Kubernetes: there its mode is not the user's, and 0644 by default."""
    words = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", MOUNTED, str(tmp_path)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*words[:4], "true"], capture_output=True).returncode
    ):
        pytest.skip("this machine has no namespaces for users and mounts")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    if "cannot mount" in done.stderr:
        pytest.skip("this machine does not let namespaces of users mount anything")
    assert done.stdout.splitlines() == ["0o440 b'pepper'", "0o644 b'pepper'"], done.stderr
    assert done.stderr.count("is open to every user here: its mode is 0644") == 1
