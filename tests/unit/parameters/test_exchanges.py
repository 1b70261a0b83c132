"""What workers leave with server 0 for each other: the arrays of all, and the values that they look at together."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stratagem.errors import StrategyError
from stratagem.parameters import protocol
from stratagem.parameters.exchanges import END, Agreements, Gathers, beside, standing_for
from stratagem.parameters.rendezvous import Rendezvous

ALL = {0, 1, 2}


def test_the_end_of_a_fit_waits_for_all_who_have_not_gone() -> None:
    book = Agreements()
    assert book.awaited((1, END), ALL) == [0, 1, 2]
    book.end(0, 1)
    book.end(2, 1)
    assert book.awaited((1, END), ALL) == [1]
    assert book.awaited((1, END), ALL - {1}) == []
    assert book.awaited((2, END), ALL) == [0, 1, 2]


def test_an_epoch_waits_for_nobody() -> None:
    assert Agreements().awaited((1, 1), ALL) == []


def test_what_is_kept_stands_for_what_was_before_and_is_not_waited_for() -> None:
    book = Agreements()
    assert not book.is_kept((1, 1))
    book.keep((1, 2))
    assert [book.is_kept(label) for label in ((1, 1), (1, 2), (1, 3), (1, END), (2, 1))] == [
        True,
        True,
        False,
        False,
        False,
    ]
    book.keep((1, END))
    assert book.awaited((1, END), ALL) == []  # agreed without those who did not come


def test_the_end_of_a_fit_stays_while_others_are_in_the_next_one() -> None:
    book = Agreements()
    book.keep((1, 3))
    book.keep((1, END))
    book.keep((2, 1))
    book.keep((2, 2))
    labels = (1, 3), (1, END), (2, 1), (2, 2), (2, 3), (2, END)
    assert [book.is_kept(label) for label in labels] == [True, True, True, True, False, False]
    assert standing_for([(1, END), (2, 2)], (1, 3)) == (1, END)
    assert beside([(1, END), (2, 2)], (2, 3)) == [(1, END), (2, 3)]
    assert beside([(1, END), (2, 3)], (2, END)) == [(2, END)]


def test_nothing_is_kept_when_the_servers_have_gone_back() -> None:
    book = Agreements()
    book.end(0, 1)
    book.keep((1, END))
    book.forget()
    assert not book.is_kept((1, END))
    assert book.awaited((1, END), {0}) == []


def rendezvous(answer: Callable[[dict[str, Any]], dict[str, Any]], patience: float) -> Rendezvous:
    """That of a worker whose server 0 answers so."""

    def call(server: int, call: str, fields: dict[str, Any], seconds: float) -> Any:
        assert (server, call) == (0, protocol.AGREE)
        return SimpleNamespace(fields=answer(fields))

    client: Any = SimpleNamespace(
        call=call,
        epoch="now",
        patience=patience,
        server=SimpleNamespace(task="/job:worker/task:0"),
        log_waiting=lambda what, seconds: None,
    )
    return Rendezvous(client)


def test_a_worker_that_never_comes_is_waited_for_no_longer_than_it_may_take(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        state = protocol.PENDING if fields["waits"] else protocol.OK
        return {protocol.STATE: state, "waiting": ["/job:worker/task:1"], "pushed": 7}

    rendezvous(answer, patience=0.01).agree((1, END))
    assert "does not wait any longer for /job:worker/task:1 to come to the end of fit" in caplog.text


def test_a_worker_that_trains_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    steps = iter(range(1, 200))

    def answer(fields: dict[str, Any]) -> dict[str, Any]:
        step = next(steps)
        assert fields["waits"]
        state = protocol.OK if step == 199 else protocol.PENDING
        return {protocol.STATE: state, "waiting": ["/job:worker/task:1"], "pushed": step}

    # Without any patience: every answer tells of further pushes.
    rendezvous(answer, patience=1e-9).agree((1, END))
    assert not caplog.text


def test_all_get_what_all_have_brought() -> None:
    gathers = Gathers()
    first = gathers.bring(1, "x", "reduce", "b", {0, 1})
    assert not first.is_complete
    second = gathers.bring(0, "x", "reduce", "a", {0, 1})
    assert second is first
    assert first.is_complete
    assert first.parts == {0: "a", 1: "b"}


def test_a_part_brought_twice_counts_once_also_when_all_have_gone_on() -> None:
    gathers = Gathers()
    first = gathers.bring(0, "x", "reduce", 1, {0, 1})
    assert gathers.bring(0, "x", "reduce", 1, {0, 1}) is first
    gathers.bring(1, "y", "reduce", 2, {0, 1})
    assert gathers.bring(0, "x", "reduce", 1, {0, 1}) is first
    following = gathers.bring(1, "z", "reduce", 4, {0, 1})
    assert following is not first
    assert following.parts == {1: 4}


def test_who_has_left_is_not_waited_for() -> None:
    gathers = Gathers()
    meeting = gathers.bring(0, "x", "reduce", 1, {0, 1})
    gathers.look({0})
    assert meeting.is_complete


def test_workers_that_mean_different_things_are_told() -> None:
    gathers = Gathers()
    gathers.bring(0, "x", "reduce", 1, {0, 1})
    with pytest.raises(StrategyError, match="worker 1 is at 'more data' while worker 0 is at 'reduce'"):
        gathers.bring(1, "x", "more data", 1, {0, 1})
