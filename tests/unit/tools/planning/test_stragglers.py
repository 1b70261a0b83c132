"""How steps vary: what is drawn has the mean that it should have, and what cannot be is refused."""

import numpy as np
import pytest

from stratagem.errors import LaunchError
from stratagem.tools.planning.stragglers import Stragglers


@pytest.mark.parametrize(
    "text",
    ["none", "lognormal:0.5", "exponential", "exponential:0.3", "pareto:5", "lognormal:0.1+exponential:0.5"],
)
def test_steps_take_as_long_as_told_on_average(text: str) -> None:
    drawn = Stragglers.parse(text).draw(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(1, rel=0.01)
    assert drawn.min() >= 0
    assert (drawn.std() > 0) == (text != "none")


def test_the_spread_is_what_is_told() -> None:
    random = np.random.default_rng(0)
    assert np.log(Stragglers.parse("lognormal:0.2").draw(random, 100_000)).std() == pytest.approx(
        0.2, rel=0.01
    )
    assert Stragglers.parse("exponential:0.3").draw(random, 100_000).std() == pytest.approx(0.3, rel=0.02)


def test_some_workers_are_slow_for_good() -> None:
    factors = Stragglers.parse("slow:0.25x3").factors(8)
    assert sorted(factors) == [1, 1, 1, 1, 1, 1, 3, 3]
    assert list(Stragglers.parse("slow:0.1x3").factors(4)) == [1, 1, 1, 1]  # the nearest number is none
    assert list(Stragglers.parse("slow:0.5x2+slow:0.5x3").factors(2)) == [1, 6]


@pytest.mark.parametrize(
    "text", ["none", "lognormal:0.2", "exponential:1", "pareto:3", "slow:0.1x3", "lognormal:0.2+slow:0.1x3"]
)
def test_it_is_written_as_it_is_read(text: str) -> None:
    assert str(Stragglers.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "often",
        "lognormal",
        "lognormal:x",
        "slow:0.1",
        "slow:x3",
        "pareto:",
        "none+none",
        "lognormal:0.2+",
    ],
)
def test_what_is_not_understood_is_answered_with_what_is(text: str) -> None:
    with pytest.raises(LaunchError, match=r"not understood; give none, lognormal"):
        Stragglers.parse(text)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("lognormal:-1", "0 to 5"),
        ("lognormal:nan", "0 to 5"),
        ("exponential:2", "0 to 1"),
        ("pareto:1", "more than 1"),
        ("slow:2x3", "share of 0 to 1"),
        ("slow:0.5x0", "factor of more than 0"),
    ],
)
def test_what_cannot_be_is_refused(text: str, allowed: str) -> None:
    with pytest.raises(LaunchError, match=allowed):
        Stragglers.parse(text)
