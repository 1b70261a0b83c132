"""Between hosts: TCP and TLS, strangers, a cut and healed link, and no mistaking two hosts for one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from drills.remote_listener import SECRET, RemoteListener
from hosts import Host, simulated_hosts
from process.runtime.wire.certificates import Authority
from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, DeadlineExceeded, TaskLost, TaskUnreachable
from stratagem.runtime.wire import TLS, Credentials, Peer
from stratagem.runtime.wire.addresses import listening_address


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with simulated_hosts(4) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def far(hosts: list[Host]) -> Iterator[RemoteListener]:
    with RemoteListener(before=hosts[0].command, where=f"{hosts[0].address}:0") as far:
        yield far


def test_between_hosts_tcp_and_within_one_shared_memory(hosts: list[Host], far: RemoteListener) -> None:
    array = np.arange(1_000_000)

    def transport() -> str | None:
        with far.peer() as peer:
            assert np.array_equal(peer.call("echo", tensors=[array], timeout=20).tensors[0], array)
            return peer.transport

    assert [host.run(transport) for host in hosts] == ["shared memory", "tcp", "tcp", "tcp"]


def test_a_task_listens_on_the_network_of_its_address_only(hosts: list[Host]) -> None:
    here, there = hosts[:2]

    def listens_at(own: str) -> str:
        return listening_address(Address(own, 2222), [own, there.address]).host

    assert here.run(partial(listens_at, here.address)) == here.address
    assert here.run(partial(listens_at, there.address)) == "0.0.0.0"
    assert (
        here.run(partial(listens_at, "127.1.1")) == "0.0.0.0"
    )  # as Debian has a host's own name mean 127.0.1.1


def test_a_stranger_on_another_host(hosts: list[Host], far: RemoteListener) -> None:
    def call() -> None:
        with far.peer("guessed") as peer:
            peer.call("who", timeout=20)

    with pytest.raises(AuthenticationError, match="another secret"):
        hosts[1].run(call)
    far.expect_log(f"refused a connection from {hosts[1].address}:")


def test_tls_between_hosts(hosts: list[Host], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    array = np.arange(1_000_000)
    files = authority.issue("server")
    with RemoteListener(before=hosts[0].command, where=f"{hosts[0].address}:0", tls=files) as far:

        def transport() -> str | None:
            with Peer(far.address, credentials=Credentials(SECRET, TLS(authority.ca))) as peer:
                assert np.array_equal(peer.call("echo", tensors=[array], timeout=20).tensors[0], array)
                return peer.transport

        assert [host.run(transport) for host in hosts[:2]] == ["shared memory", "tls"]


def test_a_cut_and_healed_link(hosts: list[Host], far: RemoteListener) -> None:
    def drill() -> None:
        with far.peer() as peer:
            peer.call("who", timeout=20)
            hosts[2].cut()
            try:
                start = time.monotonic()
                words = f"/job:ps/task:0 at {far.address} did not answer 'who' within 1 s"
                with pytest.raises(DeadlineExceeded, match=words):
                    peer.call("who", timeout=1)
                assert time.monotonic() - start < 2
                with pytest.raises(TaskUnreachable, match=f"/job:ps/task:0 at {far.address}"):
                    peer.call("who", timeout=1)
            finally:
                hosts[2].heal()
            assert peer.call("echo", {"healed": True}, timeout=20).fields == {"healed": True}

    hosts[2].run(drill)


def test_a_link_cut_during_a_silent_wait_is_noticed(
    hosts: list[Host], far: RemoteListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in real life, only ten times as fast."""
    streams = "stratagem.runtime.wire.sockets"
    for name, value in (("IDLE", 1), ("INTERVAL", 1), ("COUNT", 1)):
        monkeypatch.setattr(f"{streams}._KEEPALIVE_{name}", value)
    monkeypatch.setattr(f"{streams}._USER_TIMEOUT_MILLISECONDS", 1000)

    with far.peer() as peer, ThreadPoolExecutor() as threads:
        # Once made on the host, a connection can be used from anywhere.
        hosts[3].run(lambda: peer.call("who", timeout=20))
        waiting = threads.submit(peer.call, "hang", timeout=60)
        assert far.process.stdout is not None
        assert far.process.stdout.readline() == "hanging\n"
        hosts[3].cut()
        start = time.monotonic()
        try:
            with pytest.raises(TaskLost, match="broke during 'hang'"):
                waiting.result(20)
        finally:
            hosts[3].heal()
        assert 0.5 < time.monotonic() - start < 10


def test_a_slow_and_lossy_link(hosts: list[Host], far: RemoteListener) -> None:
    hosts[1].degrade(delay_milliseconds=20, loss_percent=1)
    array = np.arange(100_000)

    def call() -> bool:
        with far.peer() as peer:
            return bool(np.array_equal(peer.call("echo", tensors=[array], timeout=30).tensors[0], array))

    assert hosts[1].run(call)
