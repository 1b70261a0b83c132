"""Checks of numbers that users give to the Estimator, with the message that goes with each."""

from stratagem.errors import StrategyError


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuses what is neither `None` nor a whole number of at least `least`."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise StrategyError(f"{name} is {value!r}; give a whole number of at least {least}, or None")


def check_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Refuses what is not a number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if above_zero else value >= 0):  # type: ignore[operator]
        raise StrategyError(
            f"{name} is {value!r}; give a number of seconds{' above 0' if above_zero else ', 0 or more'}"
        )


def check_callable(name: str, value: object, form: str) -> None:
    """Refuses what cannot be called."""
    if not callable(value):
        raise StrategyError(f"{name} is {value!r}; give a function {form}")
