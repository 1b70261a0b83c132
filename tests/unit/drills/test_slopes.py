"""What grows is told from what breathes."""

import math
from random import Random

from drills.slopes import HOUR, Life, later_half, slope


def life(seconds: int, level: float, growth: float, noise: float, random: Random) -> Life:
    return [(second, level + growth * second / HOUR + random.gauss(0, noise)) for second in range(seconds)]


def test_one_life_that_grows() -> None:
    found = slope([life(600, 100, growth=60, noise=0.5, random=Random(1))])
    assert abs(found.growth - 60) < 5 * found.error
    assert found.is_beyond(20)


def test_what_breathes_does_not_grow() -> None:
    found = slope([life(600, 100, growth=0, noise=5, random=Random(2))])
    assert abs(found.growth) < 5 * found.error
    assert not found.is_beyond(20)


def test_each_life_has_a_level_of_its_own() -> None:
    random = Random(3)
    steady = [life(60, level, growth=0, noise=0.1, random=random) for level in range(10, 100, 10)]
    assert not slope(steady).is_beyond(5)
    growing = [life(60, level, growth=100, noise=0.1, random=random) for level in range(100, 10, -10)]
    assert slope(growing).is_beyond(50)


def test_nothing_is_said_of_too_little() -> None:
    too_little: list[list[Life]] = [[], [[]], [life(15, 1, growth=0, noise=0, random=Random(4))]]
    for lives in too_little:
        found = slope(lives)
        assert math.isnan(found.growth)
        assert not found.is_beyond(0)
        assert str(found) == "too short"


def test_a_constant_has_no_slope_and_no_error() -> None:
    assert str(slope([[(second, 7.0) for second in range(100)]])) == "+0.0 ± 0.0"


def test_what_settles_is_told_from_what_leaks() -> None:
    """As measured: a megabyte more for each of the first 13 events, one every 20 seconds, and nothing for those after."""
    settling = [(second, 270.0 + min(13, second // 20)) for second in range(600)]
    assert slope([settling]).is_beyond(20)
    assert str(slope([later_half(settling)])) == "+0.0 ± 0.0"
    leaking = [(second, 270.0 + second // 20) for second in range(600)]
    assert slope([later_half(leaking)]).is_beyond(20)
