"""Checks of what users give to the Estimator, with the message that goes with each."""

from stratagem.devices.whole_numbers import whole_number
from stratagem.errors import StrategyError

INPUT_FN = "that returns an iterable of (features, labels) batches"
"""What an input function is."""


def count(name: str, value: object, least: int = 1, also: str = "") -> int:
    """`value` as an `int`; refuses what is no whole number of at least `least`."""
    number = whole_number(value)
    if number is None or number < least:
        raise StrategyError(f"{name} is {value!r}; give a whole number of at least {least}{also}")
    return number


def count_or_none(name: str, value: object) -> int | None:
    """The same for what may be left out."""
    return None if value is None else count(name, value, also=", or None")


def check_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Refuses what is not a number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if above_zero else value >= 0):  # type: ignore[operator]
        raise StrategyError(
            f"{name} is {value!r}; give a number of seconds{' above 0' if above_zero else ', 0 or more'}"
        )
