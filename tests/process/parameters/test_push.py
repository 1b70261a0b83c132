"""A push on its way: sent under one number however often, its arrays only when a server lacks them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from stratagem.errors import RolledBack, TaskLost
from stratagem.parameters import protocol
from stratagem.parameters.client import FreeMemory
from stratagem.parameters.protocol import ArrayConfig, StoreConfig
from stratagem.parameters.push import Contribution, PushUnderWay
from stratagem.parameters.rules import Async
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.wire import Listener, Peer, Reply, Request

SHAPE = (100, 100)
NUMBER = [0, "incarnation", 7, 3, 20]
CONFIG = StoreConfig(
    name="model-0", server=0, servers=("/job:ps/task:0",), workers=("/job:worker/task:0",), participants=(0,),
    leaves=(ArrayConfig("w", TensorSpec(SHAPE, "float32")),), slots=(), commons=(), rule=Async(), update="", partials="", combine="",
    snapshot_dir=None, snapshot_secs=60.0, rejoin_timeout=60.0,
)  # fmt: skip


class ServerZero:
    """Answers pushes with what it was given, one after the other, and remembers what came."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.came: list[tuple[dict[str, Any], int]] = []

    def push(self, request: Request) -> Reply:
        self.came.append((dict(request.fields), len(request.tensors)))
        state = self.states.pop(0)
        leaves = [request.tensors[0] * 2] if state == protocol.OK and request.tensors else []
        return Reply({protocol.STATE: state, "why": "a loss", "waiting": ["/job:worker/task:1"]}, leaves)


@contextmanager
def push_to(server: ServerZero, shared_memory: bool, waited: list[str]) -> Iterator[PushUnderWay]:
    fields = {"model": "model-0", "epoch": "now", "push": NUMBER}
    contribution = Contribution(20, [[np.ones(SHAPE, np.float32)]], metrics={"loss": 0.5})
    with (
        Listener("127.0.0.1:0", {protocol.PUSH: server.push}) as listener,
        Peer(listener.address, shared_memory=shared_memory) as peer,
    ):

        def find(number: int) -> Peer:
            if number:
                raise TaskLost("it is gone")
            return peer

        log = waited.append
        yield PushUnderWay(fields, contribution, find, [FreeMemory(CONFIG)], lambda whom, _: log(whom))


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("is_sent_first", [True, False])
def test_it_is_asked_after_without_its_arrays_and_sent_again_where_they_are_missing(
    shared_memory: bool, is_sent_first: bool
) -> None:
    server = ServerZero(protocol.PENDING, protocol.SEND, protocol.OK)
    waited: list[str] = []
    with push_to(server, shared_memory, waited) as push:
        if is_sent_first:
            push.send(0)
        answer = push.exchange(0)
        assert np.array_equal(answer.tensors[0], np.full(SHAPE, 2.0))
    assert waited == ["for /job:worker/task:1"]
    assert [(fields["again"], arrays) for fields, arrays in server.came] == [
        (False, 1),
        (True, 0),
        (False, 1),
    ]
    assert {(*fields["push"], fields["epoch"]) for fields, _ in server.came} == {(*NUMBER, "now")}


def test_a_second_attempt_has_the_number_of_the_first() -> None:
    server = ServerZero(protocol.ROLLED_BACK, protocol.OK)
    with push_to(server, True, []) as push:
        with pytest.raises(RolledBack, match="a loss"):
            push.exchange(0)
        push.abandon()
        push.exchange(0)
    first, second = server.came
    assert first == second


def test_a_server_waits_for_no_other_whose_part_got_lost() -> None:
    server = ServerZero(protocol.PENDING)
    with push_to(server, True, []) as push:
        with pytest.raises(TaskLost) as loss:
            push.exchange(1)
        with pytest.raises(RolledBack, match="another server did not get its part") as failure:
            push.exchange(0)
    assert str(loss.value).splitlines()[0] in str(failure.value)
