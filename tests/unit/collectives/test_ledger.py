"""The book of one worker: who may do what next, and what is said when it may not."""

import numpy as np
import pytest

from stratagem.collectives.failures import Failure
from stratagem.collectives.ledger import Ledger
from stratagem.collectives.options import GroupOptions
from stratagem.collectives.rounds import Round
from stratagem.collectives.tickets import Operation, Ticket
from stratagem.errors import ProtocolError, RemoteError, StrategyError, VariableMismatch, WorkerLost

TASKS = [f"/job:worker/task:{index}" for index in range(3)]
SUM = Operation("all_reduce", ("float32[3]",), sums=True)
OTHER = Operation("all_reduce", ("float32[3]", "int32[]"), sums=True)
BARRIER = Operation("barrier")


def ledger(index: int = 0, generation: int = 0) -> Ledger:
    return Ledger(TASKS, index, generation, f"token of {index}")


def ticket(worker: int, sequence: int, operation: Operation = SUM, **flags: bool) -> Ticket:
    return Ticket(worker, 0, f"token of {worker}", sequence, operation.name, operation.digest, **flags)


def begun(
    book: Ledger, operation: Operation = SUM, owners: tuple[int, ...] = (0,), done: bool = False
) -> Round:
    found = book.begin(operation, [np.ones(3)], [np.zeros(3)], owners, is_done=done)
    assert isinstance(found, Round)
    return found


# ------------------------------------------------------------------ one round


def test_an_owner_awaits_all_parts_and_they_keep_the_workers_order() -> None:
    current = begun(ledger())
    assert current.missing == [1, 2]
    assert not current.put(ticket(2, 1), [np.full(3, 2.0)])
    assert current.put(ticket(1, 1), [np.full(3, 1.0)])
    assert [float(part[0][0]) for part in current.parts()] == [1.0, 1.0, 2.0]
    assert not current.is_over
    current.combined([np.zeros(3)], [])
    current.sent()
    assert not current.is_over
    current.sent()
    assert current.is_over


def test_a_part_may_be_taken_back_until_all_are_there() -> None:
    current = begun(ledger(), done=True)
    current.put(ticket(1, 1, is_done=False), [])
    assert current.withdraw(1)
    assert not current.has(1)
    assert current.all_done
    current.put(ticket(1, 1, is_done=True), [])
    current.put(ticket(2, 1, is_done=True), [])
    assert not current.withdraw(1)
    assert current.all_done


def test_a_part_that_adds_nothing_is_left_out() -> None:
    current = begun(ledger())
    current.put(ticket(1, 1, is_empty=True), [])
    current.put(ticket(2, 1), [np.full(3, 2.0)])
    assert len(current.parts()) == 2


def test_one_who_owns_nothing_awaits_the_owners() -> None:
    current = begun(ledger(2), owners=(0, 1))
    assert current.missing == [0, 1]
    current.answered(1, all_done=False)
    assert not current.is_over
    current.answered(0, all_done=True)
    assert current.is_over
    assert current.all_done


# ---------------------------------------------------------------- the whole book


def test_a_caller_who_is_one_round_ahead_waits() -> None:
    book = ledger()
    assert book.admit(ticket(1, 1)) is None
    current = begun(book)
    assert book.admit(ticket(1, 1)) is current
    assert book.admit(ticket(1, 2)) is None
    book.complete()
    assert (book.begun, book.completed) == (1, 1)


@pytest.mark.parametrize("sequence", [1, 3, 5, 50])
def test_a_caller_who_is_elsewhere_is_out_of_step(sequence: int) -> None:
    book = ledger()
    begun(book)
    book.complete()
    begun(book)
    failure = book.admit(ticket(1, sequence))
    if sequence == 3:
        assert failure is None
        return
    assert isinstance(failure, Failure)
    assert f"{TASKS[0]} is at operation 2 (all_reduce)" in failure.text
    assert f"{TASKS[1]} at operation {sequence} (all_reduce)" in failure.text
    assert isinstance(failure.error(TASKS), RemoteError)
    assert failure.error(TASKS).task == TASKS[1]


def test_a_part_that_comes_twice_is_out_of_step() -> None:
    book = ledger()
    begun(book).put(ticket(1, 1), [])
    assert isinstance(book.admit(ticket(1, 1)), Failure)


def test_another_operation_is_out_of_step_and_other_arrays_are_named() -> None:
    book = ledger()
    current = begun(book)
    failure = book.admit(ticket(1, 1, BARRIER))
    assert isinstance(failure, Failure)
    assert "operation 1 (barrier)" in failure.text
    assert book.admit(ticket(1, 1, OTHER)) is current  # the digests tell, and then the lines
    difference = book.compare(current, ticket(1, 1, OTHER), OTHER.lines)
    assert "number 1 of 1 is missing at /job:worker/task:0" in difference.text
    assert "of 2 it is int32[] at /job:worker/task:1" in difference.text
    assert isinstance(difference.error(TASKS), VariableMismatch)


def test_other_generations_and_other_starts_are_refused() -> None:
    book = ledger(generation=3)
    assert not book.meet(1, 2, "old")
    assert book.meet(1, 3, "token of 1")
    assert book.has_met(1)
    assert not book.has_met(2)
    stale = book.refusal(ticket(1, 1))
    assert stale is not None
    assert "generation 0" in stale.text
    assert book.refusal(ticket(1, 1)._replace(generation=3)) is None
    again = book.refusal(ticket(1, 1)._replace(generation=3, token="another"))
    assert again is not None
    assert "started again" in again.text
    nobody = book.refusal(ticket(7, 1)._replace(generation=3))
    assert nobody is not None


def test_one_who_has_left_is_missed_before_during_and_after() -> None:
    book = ledger()
    begun(book)
    assert book.leave(1, 1) is None
    book.complete()
    before = book.begin(SUM, [], [], (0,))
    assert isinstance(before, Failure)
    assert "/job:worker/task:1 has left the group after operation 1" in before.text
    assert isinstance(before.error(TASKS), WorkerLost)

    waiting = ledger()
    begun(waiting)
    during = waiting.leave(2, 0)
    assert isinstance(during, Failure)
    assert during.worker == 2

    closed = ledger()
    closed.is_closed = True
    after = closed.admit(ticket(1, 1))
    assert isinstance(after, Failure)
    assert after.worker == 0


# ----------------------------------------------------------- what crosses the wire


@pytest.mark.parametrize(
    "value", [None, [], [1], list(range(8)), [0, 0, "t", True, "all_reduce", b"", False, False]]
)
def test_what_is_no_ticket_is_refused(value: object) -> None:
    with pytest.raises(ProtocolError):
        Ticket.from_fields({"ticket": value})


def test_tickets_and_failures_come_through() -> None:
    sent = ticket(1, 5, is_done=True)
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
