"""The book of one worker: who may do what next, and what is said when it may not."""

import pytest

from stratagem.collectives.failures import Failure
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.options import GroupOptions
from stratagem.collectives.tickets import Operation, Ticket
from stratagem.errors import ProtocolError, RemoteError, StrategyError, VariableMismatch, WorkerLost

TASKS = [f"/job:worker/task:{index}" for index in range(3)]
SUM = Operation("all_reduce", ("float32[3]",))
OTHER = Operation("all_reduce", ("float32[3]", "int32[]"))
BARRIER = Operation("barrier")


def ledger(index: int = 0, generation: int = 0) -> Ledger:
    return Ledger(TASKS, index, generation, f"token of {index}")


def begun(book: Ledger, operation: Operation = SUM) -> Ticket:
    assert book.begin(operation) is None
    return book.take_turn()


def test_an_operation_may_take_several_turns() -> None:
    book = ledger()
    assert begun(book)[:2] == (1, 1)
    assert book.take_turn(is_empty=True, is_done=True)[:2] == (1, 2)
    book.complete()
    assert begun(book)[:2] == (2, 3)
    assert (book.begun, book.completed) == (2, 1)
    assert book.place == "operation 2 (all_reduce)"


def test_workers_at_the_same_place_agree_whatever_they_have_to_add() -> None:
    own = begun(ledger())
    told = begun(ledger(1))._replace(is_empty=True, is_done=True, has_more=True)
    assert ledger().compare(own, 1, told) is None


@pytest.mark.parametrize(("sequence", "turn"), [(1, 2), (3, 2), (2, 1), (2, 3), (50, 50)])
def test_a_worker_that_is_elsewhere_is_out_of_step(sequence: int, turn: int) -> None:
    book = ledger()
    begun(book)
    own = begun(book)
    failure = book.compare(own, 1, own._replace(sequence=sequence, turn=turn))
    assert isinstance(failure, Failure)
    assert f"{TASKS[0]} is at operation 2 (all_reduce)" in failure.text
    assert f"{TASKS[1]} at operation {sequence} (all_reduce)" in failure.text
    assert isinstance(failure.error(TASKS), RemoteError)
    assert failure.error(TASKS).task == TASKS[1]


def test_another_operation_is_out_of_step_and_other_arrays_are_named() -> None:
    book = ledger()
    own = begun(book)
    failure = book.compare(own, 1, begun(ledger(1), BARRIER))
    assert isinstance(failure, Failure)
    assert "operation 1 (barrier)" in failure.text
    assert book.compare(own, 1, begun(ledger(1), OTHER)) is None  # the digests tell, and then the lines
    difference = book.differ(1, OTHER.lines)
    assert "number 1 of 1 is missing at /job:worker/task:0" in difference.text
    assert "of 2 it is int32[] at /job:worker/task:1" in difference.text
    assert isinstance(difference.error(TASKS), VariableMismatch)


def test_other_generations_and_other_starts_are_not_met() -> None:
    book = ledger(generation=3)
    assert not book.meet(1, 2, "old")
    assert book.meet(1, 3, "token of 1")
    assert book.has_met(1)
    assert not book.has_met(2)
    assert book.meet(1, 3, "token of 1")
    assert not book.meet(1, 3, "another")
    assert not book.meet(7, 3, "token of 7")
    assert not book.meet(0, 3, "token of 0")


def test_one_who_has_left_is_missed_before_and_during() -> None:
    book = ledger()
    begun(book)
    assert book.leave(1, 1) is None
    book.complete()
    before = book.begin(SUM)
    assert isinstance(before, Failure)
    assert "/job:worker/task:1 has left the group after operation 1" in before.text
    assert isinstance(before.error(TASKS), WorkerLost)

    waiting = ledger()
    begun(waiting)
    during = waiting.leave(2, 0)
    assert isinstance(during, Failure)
    assert during.worker == 2


# ----------------------------------------------------------- what crosses the wire


@pytest.mark.parametrize(
    "value", [None, [], [1], list(range(7)), [1, True, "all_reduce", b"", False, False, False]]
)
def test_what_is_no_ticket_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        Ticket.from_fields({"ticket": value})


def test_tickets_and_failures_come_through() -> None:
    sent = begun(ledger())._replace(is_done=True)
    assert Ticket.from_fields({"ticket": list(sent)}) == sent
    failure = Failure("lost", 1, "it is gone")
    assert Failure.from_fields(failure.to_fields()) == failure
    with pytest.raises(ProtocolError):
        Failure.from_fields({"kind": "no such kind", "worker": 0, "text": ""})


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
