"""Where a task listens."""

import socket

import pytest

from stratagem.cluster import Address
from stratagem.errors import AuthenticationError, TaskUnreachable
from stratagem.runtime.wire import Credentials, Listener
from stratagem.runtime.wire.addresses import address_at, bind, listening_address


def test_a_target_is_an_address() -> None:
    assert str(address_at("sg://[::1]:2222")) == "[::1]:2222"
    assert address_at(address_at("localhost:1")) == address_at("localhost:1")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TaskUnreachable, match=f"127.0.0.1:{port}: another process has port {port}"):
            bind(address_at(f"127.0.0.1:{port}"))


ELSEWHERE = "198.51.100.7"  # for documentation: no host has it
NAME = "127.2"  # no address in the usual form, and resolved as names are: to 127.0.0.2


@pytest.mark.parametrize(
    ("own", "others", "where"),
    [
        ("127.0.0.2", [ELSEWHERE], "127.0.0.2"),
        ("localhost", [ELSEWHERE], "localhost"),
        ("::1", ["127.0.0.1"], "::1"),
        (NAME, ["127.3", "localhost"], NAME),
        (NAME, ["127.3", ELSEWHERE], "0.0.0.0"),
        (NAME, ["no-such-host.invalid"], "0.0.0.0"),
        (NAME, [], "0.0.0.0"),
        (ELSEWHERE, ["127.0.0.1"], "0.0.0.0"),
        ("2001:db8::7", ["::1"], "::"),
        ("no-such-host.invalid", ["127.0.0.1"], "0.0.0.0"),
    ],
)
def test_a_task_listens_at_its_own_address_if_the_host_has_it(
    own: str, others: list[str], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="stratagem"):
        found = listening_address(Address(own, 2222), others)
    assert found == Address(where, 2222)
    assert ("listening on all networks of this host" in caplog.text) == (found.host != own)


def test_an_open_address_needs_a_secret() -> None:
    with pytest.raises(AuthenticationError, match=r"STRATAGEM_SECRET.*insecure=True \(--insecure\)"):
        Listener("0.0.0.0:0")
    with pytest.raises(AuthenticationError):
        Listener(bind(address_at("0.0.0.0:0")))
    Listener("0.0.0.0:0", insecure=True).stop()
    Listener("0.0.0.0:0", credentials=Credentials("s")).stop()
    Listener("127.0.0.1:0").stop()
    Listener("[::1]:0").stop()
