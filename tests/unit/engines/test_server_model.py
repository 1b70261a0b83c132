"""When a worker asks for newer parameters, and when it computes once more."""

import pytest

from stratagem.engines import server_model
from stratagem.engines.server_model import ParameterAge


class Clock:
    """Time as a test lets it pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server_model, "time", clock)
    return clock


def computed(age: ParameterAge, clock: Clock, seconds: float, pause: float = 0.0) -> tuple[bool, bool]:
    """One step after a pause: whether newer parameters are asked for, and whether it took as long as ever."""
    clock.now += pause
    is_too_great = age.is_too_great()
    if is_too_great:
        age.reset()
    clock.now += seconds
    was_as_ever = age.was_as_ever()
    age.reset()  # those that come with the push
    return is_too_great, was_as_ever


def test_the_first_computation_compiles_and_those_after_it_are_as_ever(clock: Clock) -> None:
    age = ParameterAge()
    assert computed(age, clock, 20.0) == (False, False)
    assert [computed(age, clock, 0.1) for _ in range(3)] == [(False, True)] * 3


def test_a_computation_that_takes_far_longer_is_made_once_more(clock: Clock) -> None:
    age = ParameterAge()
    for seconds in (5.0, 0.1, 0.1):
        computed(age, clock, seconds)
    assert computed(age, clock, 0.5) == (False, True), "some take longer than others"
    assert computed(age, clock, 0.1) == (False, True)
    assert computed(age, clock, 8.0) == (False, False), "another shape, compiled anew"
    assert computed(age, clock, 0.1) == (False, True)


@pytest.mark.parametrize(
    ("pause", "computing", "asks"),
    [(0.0, 0.1, False), (0.05, 0.1, False), (0.2, 0.1, True), (0.004, 0.0001, False), (0.006, 0.0001, True)],
)
def test_newer_ones_are_asked_for_after_a_pause_longer_than_computing(
    clock: Clock, pause: float, computing: float, asks: bool
) -> None:
    age = ParameterAge()
    for _ in range(3):
        computed(age, clock, computing)
    assert computed(age, clock, computing, pause) == (asks, True)
