"""The small parts: limits, deadlines, credentials, addresses, failures, counters, the rationed log, guests."""

import logging
import math
import os
import pwd
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratagem import errors
from stratagem.cluster import Address
from stratagem.errors import (
    AuthenticationError,
    DeadlineExceeded,
    LimitExceeded,
    RemoteCallError,
    StratagemError,
    TaskUnreachable,
)
from stratagem.runtime.wire import TLS, Credentials, Limits, Listener
from stratagem.runtime.wire.addresses import address_at, bind, listening_address
from stratagem.runtime.wire.answering import Counters, RateLimitedLog
from stratagem.runtime.wire.credentials import read_secret_file
from stratagem.runtime.wire.error_translation import describe_failure, rebuild_failure
from stratagem.runtime.wire.listener import ConnectionTable
from stratagem.runtime.wire.sockets import Stream
from stratagem.runtime.wire.waiting import FOREVER, Deadline, Stall


def test_limits_are_numbers() -> None:
    for value in (-1, "many", True, None):
        with pytest.raises(LimitExceeded, match="frame_bytes"):
            Limits(frame_bytes=value)  # type: ignore[arg-type]


def test_a_deadline_runs_out() -> None:
    assert Deadline(math.inf).remaining() is None
    assert 0 < (Deadline(5).remaining() or 0) <= 5
    with pytest.raises(DeadlineExceeded):
        Deadline(0).remaining()
    assert Deadline(0).left() == 0
    assert Stall(3).remaining() == 3
    assert FOREVER.remaining() is None


def test_credentials_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("  from a file\n")
    file.chmod(0o600)
    assert Credentials.from_environment({}) == Credentials()
    assert Credentials.from_environment({"STRATAGEM_SECRET": "s"}).key == b"s"
    assert Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)}).key == b"from a file"
    both = {"STRATAGEM_SECRET": "s", "STRATAGEM_SECRET_FILE": str(file)}
    assert Credentials.from_environment(both).key == b"s"
    for environ in (
        {"STRATAGEM_SECRET": ""},
        {"STRATAGEM_SECRET_FILE": str(tmp_path / "missing")},
        {"STRATAGEM_TLS_CERT": str(file)},
        {"STRATAGEM_TLS_CA": str(tmp_path / "missing")},
    ):
        with pytest.raises(AuthenticationError):
            Credentials.from_environment(environ)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("pepper\n")
    file.chmod(mode)
    owner = pwd.getpwuid(os.getuid()).pw_name
    wanted = rf"{file} \(STRATAGEM_SECRET_FILE\).*mode is {mode:04o}, its owner {owner}.*chmod 600 {file}"
    with pytest.raises(AuthenticationError, match=wanted) as refused:
        Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)})
    assert "pepper" not in str(refused.value)
    file.chmod(0o400)
    assert Credentials.from_environment({"STRATAGEM_SECRET_FILE": str(file)}).key == b"pepper"


def test_a_secret_may_come_through_a_pipe() -> None:
    reading, writing = os.pipe()
    os.fchmod(reading, 0o644)
    os.write(writing, b"pepper\n")
    os.close(writing)
    assert read_secret_file(f"/dev/fd/{reading}", "--secret-file") == b"pepper"
    os.close(reading)


def test_a_secret_is_never_shown() -> None:
    assert "pepper" not in repr(Credentials("pepper"))


def test_tls_files_must_fit(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(AuthenticationError, match="without a certificate"):
        TLS(str(file), key=str(file))
    with pytest.raises(AuthenticationError, match="cannot load"):
        TLS(str(file)).client_context()
    with pytest.raises(AuthenticationError, match="needs a certificate"):
        TLS(str(file)).server_context(True)


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


def all_errors(kind: type[StratagemError]) -> Iterator[type[StratagemError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from all_errors(each)


@pytest.mark.parametrize("kind", sorted(set(all_errors(StratagemError)), key=str))
def test_our_errors_travel_as_themselves(kind: type[StratagemError]) -> None:
    try:
        raise kind("what happened")
    except StratagemError as error:
        found = rebuild_failure(describe_failure(error), "/job:ps/task:3")
    assert type(found) is kind
    assert vars(found)["task"] == "/job:ps/task:3"
    assert "what happened" in str(found)
    assert "test_our_errors_travel" in str(found)
    assert "test_our_errors_travel" in vars(found)["remote_traceback"]


@pytest.mark.parametrize(
    "name", ["ValueError", "KeyError", "Exception", "__builtins__", "annotations", "", "object"]
)
def test_no_other_class_can_be_named(name: str) -> None:
    found = rebuild_failure({"class": name, "message": "m", "traceback": "t"}, "task")
    assert type(found) is RemoteCallError
    assert name in str(found)
    assert rebuild_failure({}, "task").remote_traceback is None  # type: ignore[attr-defined]


def test_failures_are_cut_to_a_length() -> None:
    assert len(describe_failure(ValueError("x" * 10**6))["message"]) < 20_000


def test_counters_count() -> None:
    counters = Counters()
    counters.call("a", 1, 2)
    counters.call("a", 1, 2, "broke")
    counters.accepted()
    counters.refused("why")
    found = counters.snapshot(3, 4)
    assert found.calls == {"a": 2}
    assert (found.failures, found.bytes_in, found.bytes_out) == (1, 2, 4)
    assert (found.connections, found.strangers, found.accepted, found.refused) == (3, 4, 1, 1)
    assert found.last_error == "why"


def test_the_log_is_rationed(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(burst=3, per_second=0.001)
    with caplog.at_level(logging.WARNING, "stratagem"):
        for _ in range(100):
            log.warning("a stranger")
    assert caplog.messages == ["a stranger"] * 3


def test_the_oldest_stranger_gives_way_and_members_do_not() -> None:
    guests = ConnectionTable(Limits(strangers=2, connections=1))
    pairs = [socket.socketpair() for _ in range(4)]
    streams = [Stream(pair[0]) for pair in pairs]
    done = threading.Event()
    try:
        for stream in streams[:2]:
            guests.arrive(stream, threading.Thread(target=done.wait))
        guests.promote(streams[0])
        guests.arrive(streams[2], threading.Thread(target=done.wait))
        assert guests.counts() == (1, 2)
        guests.arrive(streams[3], threading.Thread(target=done.wait))
        assert [stream.is_open() for stream in streams] == [True, False, True, True]
        with pytest.raises(LimitExceeded):
            guests.promote(streams[1])
        with pytest.raises(LimitExceeded, match="1 connections"):
            guests.promote(streams[2])
        guests.leave(streams[0])
        guests.promote(streams[2])
    finally:
        done.set()
        for thread in guests.dismiss():
            thread.join()
        for pair in pairs:
            pair[0].close()
            pair[1].close()


def test_errors_are_found_by_the_names_of_their_classes() -> None:
    for kind in all_errors(StratagemError):
        assert vars(errors)[kind.__name__] is kind
