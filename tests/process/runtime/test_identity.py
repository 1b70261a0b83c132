"""Whom a task talks to: the one that it expects at an address, and nobody who happens to listen there."""

import logging
from contextlib import ExitStack

import pytest

import stratagem as sg
from drills.processes import until
from stratagem import environment

FREE = "127.0.0.1:0"


def address_of(server: sg.Server) -> str:
    return server.target.removeprefix("sg://")


def ping(server: sg.Server, task: str) -> None:
    server.peers[task].call("ping", timeout=30)


def heard_by(server: sg.Server) -> set[str]:
    with sg.Session(server.target) as session:
        return set(session.status()[server.task]["roster"])


def test_another_task_at_the_address_is_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with sg.Server({"ps": [FREE], "worker": [FREE]}, "worker", 0) as stranger:
        where = address_of(stranger)
        with (
            caplog.at_level(logging.WARNING, "stratagem"),
            sg.Server({"ps": [where], "worker": [FREE]}, "worker", 0) as lost,
        ):
            wanted = (
                f"{where} is /job:worker/task:0, not /job:ps/task:0: check --ps_hosts, or 'ps' in TF_CONFIG"
            )
            with pytest.raises(sg.ClusterError, match=f"^{wanted}"):
                ping(lost, "/job:ps/task:0")
            until("the heartbeat to be warned of", lambda: "no heartbeat to /job:ps/task:0: " in caplog.text)
            # Who asks for nobody in particular may talk to anybody, and is told the same of the others.
            with sg.Session(lost.target) as session:
                assert wanted in session.status()["/job:ps/task:0"]["error"]
        with sg.Session(stranger.target) as session:
            assert session.run(lambda: 1) == 1


@pytest.mark.parametrize(
    ("workers", "is_odd"),
    [({"worker": ["127.0.0.1:1"]}, True), ({"worker": ["localhost:1"]}, False), ({}, False)],
    ids=["at another port", "by another name of the host", "not at all"],
)
def test_a_server_that_lists_this_task_elsewhere_is_warned_of(
    caplog: pytest.LogCaptureFixture, workers: dict[str, list[str]], is_odd: bool
) -> None:
    """It has the right name, but it may be of another job."""
    with (
        caplog.at_level(logging.INFO, "stratagem"),
        sg.Server({"ps": [FREE], **workers}, "ps", 0) as ps,
        sg.Server({"ps": [address_of(ps)], "worker": [FREE]}, "worker", 0) as worker,
    ):
        odd = f"lists /job:worker/task:0 at 127.0.0.1:1, and this one is at {address_of(worker)}: it may be of another job"
        until("a heartbeat", lambda: worker.task in heard_by(ps))
        if is_odd:
            until("a warning", lambda: odd in caplog.text)
    assert caplog.text.count(odd) == caplog.text.count("another job") == int(is_odd)


def test_a_server_of_another_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One without a run is not: a server that was started by hand, for example."""
    with ExitStack() as stack:
        monkeypatch.setenv(environment.RUN_ID, "earlier")
        ps = stack.enter_context(sg.Server({"ps": [FREE]}, "ps", 0))
        cluster = sg.ClusterSpec({"ps": [address_of(ps)], "worker": {1: FREE}})
        fellow = stack.enter_context(sg.Server(cluster, "worker", 1))
        monkeypatch.setenv(environment.RUN_ID, "later")
        late = stack.enter_context(sg.Server(cluster, "worker", 1))
        monkeypatch.delenv(environment.RUN_ID)
        by_hand = stack.enter_context(sg.Server(cluster, "worker", 1))
        for server in (fellow, by_hand):
            ping(server, "/job:ps/task:0")
        with pytest.raises(
            sg.ClusterError,
            match=r"is /job:ps/task:0 of another run of `stratagem run` \(earlier\), not of this one \(later\)",
        ):
            ping(late, "/job:ps/task:0")


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with sg.Server({"ps": [FREE]}, "ps", 0) as server:
        where = address_of(server)
        port = where.rpartition(":")[2]
        taken = rf"cannot listen at {where}: another process has port {port}.* `ss -ltnp 'sport = :{port}'` shows which"
        with pytest.raises(sg.TaskUnreachable, match=taken):
            sg.Server({"ps": [where]}, "ps", 0)
