"""The state of one worker: who may do what next, and what is said when it may not."""

import pytest

from stratagem.collectives.group_failure import GroupFailure
from stratagem.collectives.group_state import GroupState, Operation, SwapHeader
from stratagem.collectives.members import GroupOptions
from stratagem.errors import ProtocolError, RemoteError, StrategyError, VariableMismatch, WorkerLost

TASKS = [f"/job:worker/task:{index}" for index in range(3)]
SUM = Operation("all_reduce", ("float32[3]",))
OTHER = Operation("all_reduce", ("float32[3]", "int32[]"))
BARRIER = Operation("barrier")


def new_state(index: int = 0, generation: int = 0) -> GroupState:
    return GroupState(TASKS, index, generation, f"token of {index}")


def begin(state: GroupState, operation: Operation = SUM) -> SwapHeader:
    assert state.begin(operation) is None
    return state.next_swap()


def test_an_operation_may_take_several_turns() -> None:
    state = new_state()
    assert begin(state)[:2] == (1, 1)
    assert state.next_swap(is_empty=True, is_done=True)[:2] == (1, 2)
    state.complete()
    assert begin(state)[:2] == (2, 3)
    assert (state.begun, state.completed) == (2, 1)
    assert state.place == "operation 2 (all_reduce)"


def test_workers_at_the_same_place_agree_whatever_they_have_to_add() -> None:
    own = begin(new_state())
    header = begin(new_state(1))._replace(is_empty=True, is_done=True, has_more=True)
    assert new_state().compare(own, 1, header) is None


@pytest.mark.parametrize(("sequence", "turn"), [(1, 2), (3, 2), (2, 1), (2, 3), (50, 50)])
def test_a_worker_that_is_elsewhere_is_out_of_step(sequence: int, turn: int) -> None:
    state = new_state()
    begin(state)
    own = begin(state)
    failure = state.compare(own, 1, own._replace(sequence=sequence, turn=turn))
    assert isinstance(failure, GroupFailure)
    assert f"{TASKS[0]} is at operation 2 (all_reduce)" in failure.text
    assert f"{TASKS[1]} at operation {sequence} (all_reduce)" in failure.text
    assert isinstance(failure.error(TASKS), RemoteError)
    assert failure.error(TASKS).task == TASKS[1]


def test_another_operation_is_out_of_step_and_other_arrays_are_named() -> None:
    state = new_state()
    own = begin(state)
    failure = state.compare(own, 1, begin(new_state(1), BARRIER))
    assert isinstance(failure, GroupFailure)
    assert "operation 1 (barrier)" in failure.text
    assert state.compare(own, 1, begin(new_state(1), OTHER)) is None  # the digests tell, and then the lines
    difference = state.difference(1, OTHER.arguments)
    assert "number 1 of 1 is missing at /job:worker/task:0" in difference.text
    assert "of 2 it is int32[] at /job:worker/task:1" in difference.text
    assert isinstance(difference.error(TASKS), VariableMismatch)


def test_other_generations_and_other_starts_are_not_met() -> None:
    state = new_state(generation=3)
    assert not state.identify(1, 2, "old")
    assert state.identify(1, 3, "token of 1")
    assert state.has_identified(1)
    assert not state.has_identified(2)
    assert state.identify(1, 3, "token of 1")
    assert not state.identify(1, 3, "another")
    assert not state.identify(7, 3, "token of 7")
    assert not state.identify(0, 3, "token of 0")


def test_one_who_has_left_is_missed_before_and_during() -> None:
    state = new_state()
    begin(state)
    assert state.leave(1, 1) is None
    state.complete()
    before = state.begin(SUM)
    assert isinstance(before, GroupFailure)
    assert "/job:worker/task:1 has left the group after operation 1" in before.text
    assert isinstance(before.error(TASKS), WorkerLost)

    waiting = new_state()
    begin(waiting)
    during = waiting.leave(2, 0)
    assert isinstance(during, GroupFailure)
    assert during.worker == 2


# ----------------------------------------------------------- what crosses the wire


@pytest.mark.parametrize(
    "value", [None, [], [1], list(range(7)), [1, True, "all_reduce", b"", False, False, False]]
)
def test_what_is_not_a_header_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        SwapHeader.from_fields({"header": value})


def test_headers_and_failures_come_through() -> None:
    sent = begin(new_state())._replace(is_done=True)
    assert SwapHeader.from_fields({"header": list(sent)}) == sent
    failure = GroupFailure("lost", 1, "it is gone")
    assert GroupFailure.from_fields(failure.to_fields()) == failure
    with pytest.raises(ProtocolError):
        GroupFailure.from_fields({"kind": "no such kind", "worker": 0, "text": ""})


@pytest.mark.parametrize(
    "options",
    [
        {"bytes_per_pack": -1},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"patience": "long"},
        {"forming": -1},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(StrategyError):
        GroupOptions(**options)  # type: ignore[arg-type]
