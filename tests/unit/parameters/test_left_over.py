"""Pushes of a worker that is killed in between: the servers that have their part must not keep it for ever."""

from collections.abc import Sequence

import jax
import numpy as np
import pytest

from stratagem.errors import RolledBack
from stratagem.parameters.authority import Authority, Decision
from stratagem.parameters.protocol import ArrayConfig, StoreConfig
from stratagem.parameters.pushes import Pushes
from stratagem.parameters.rules import Async, Push, Sync, UpdateRule
from stratagem.parameters.store import Lead, Store
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.wire import Caller, Reply, Request
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.table_files import NO_ROWS

OTHER = 1
"""The server that is not seen here, and has a part of every push too."""
GRADIENT = np.ones(3, np.float32)


class Server(Lead):
    """One server of two: a real authority and a real store, whose update changes nothing."""

    def __init__(self, rule: UpdateRule) -> None:
        self.authority = Authority(rule, 2, [0, OTHER])
        leaf = ArrayConfig("v", TensorSpec(GRADIENT.shape, "float32"))
        config = StoreConfig(
            name="model",
            server=0,
            servers=("ps 0", "ps 1"),
            workers=("worker 0", "worker 1"),
            participants=(0, OTHER),
            leaves=(leaf,),
            slots=(),
            commons=(),
            rule=rule,
            update="",
            partials="",
            combine="",
            snapshot_dir=None,
            snapshot_secs=600.0,
            rejoin_timeout=30.0,
        )
        self.store = Store(config, {}, jax.devices()[0], self, None)
        self.store.fill(0, [GRADIENT])
        self.store.begin("epoch")
        self._pushes = Pushes(config, self)

    def push(self, worker: int, incarnation: str, sequence: int = 1, is_everywhere: bool = True) -> Reply:
        """A push comes here and, unless its worker is killed in between, to the other server before."""
        push = Push(worker, incarnation, sequence, self.authority.step, 1)
        if is_everywhere:
            self.authority.arrived(push, OTHER)
        fields = {"epoch": "epoch", "again": False, "metrics": {}}
        request = Request("push", fields, [GRADIENT], True, Caller("a worker", "here", 1), 0.0)
        reply = self._pushes.take(request, self.store, push)
        if reply.after is not None:
            reply.after()
        return reply

    # What server 0 tells.

    def decide(self, epoch: str, push: Push, end: float, is_here: bool) -> tuple[Decision | None, list[str]]:
        if is_here:
            self.authority.arrived(push, 0)
        return self.authority.decision(*push[:3]), []

    def update(self, epoch: str, step: int) -> Decision | None:
        return self.authority.decision_of_step(step)

    def commons(self, epoch: str, step: int, partials: Sequence[Array]) -> Sequence[Array]:
        raise AssertionError("this model has none")

    def broken(self, epoch: str, why: str) -> None:
        raise AssertionError(why)


def test_what_killed_workers_have_pushed_to_one_server_alone_goes_when_they_are_back() -> None:
    server = Server(Async())
    for start in map(str, range(5)):
        server.authority.join(0, start)
        assert server.push(0, start).fields["kind"] == "applied"
        assert server.push(0, start, sequence=2, is_everywhere=False).fields["state"] == "pending"
        assert list(server.store._staged) == [(0, start, 2)], "and nothing of the starts before"


def test_what_another_worker_waits_with_stays() -> None:
    server = Server(Async())
    for worker in range(2):
        server.authority.join(worker, "first")
        server.push(worker, "first", is_everywhere=False)
    server.authority.join(0, "second")
    server.push(0, "second")
    assert list(server.store._staged) == [(1, "first", 1)]


@pytest.mark.parametrize("pushes", [1, 2])
def test_what_killed_workers_have_pushed_everywhere_stays_until_its_update_is_made(pushes: int) -> None:
    """With two of each worker in an update, the first is only counted when its worker is killed."""
    server = Server(Sync(replicas_to_aggregate=2 * pushes))
    for worker in range(2):
        server.authority.join(worker, "first")
    server.push(0, "first")
    server.authority.join(0, "second")
    for sequence in range(1, 4):
        server.push(0, "second", sequence)
        server.push(1, "first", sequence)
    assert server.authority.decision_of_step(1).pushes[0] == Push(0, "first", 1, 0, 1)  # type: ignore[union-attr]
    assert server.store.version == server.authority.step >= 1
    assert not server.store.left_by_earlier_starts(Push(0, "second", 1, 0, 0))


def test_prepared_values_wait_for_their_own_token() -> None:
    store = Server(Async()).store
    store.prepare("theirs", {0: 2 * GRADIENT}, NO_ROWS)
    with pytest.raises(RolledBack, match="were not prepared on this server"):
        store.take("others", 0, is_anew=False)
    store.take("theirs", 0, is_anew=False)
    _, (value,), release = store.read(0)
    assert np.array_equal(value, 2 * GRADIENT)
    release()
