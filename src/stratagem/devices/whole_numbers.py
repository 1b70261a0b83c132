"""Whole numbers as arguments, of whatever integer type."""

import operator

from stratagem.errors import ConfigurationError


def whole_number(value: object) -> int | None:
    """Return `value` as an `int` if it is an integer of any kind, NumPy's too; `None` for all else, also `True`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return operator.index(value)


def positive(name: str, value: object, example: str) -> int:
    """Return `value` as an `int` of at least 1; anything else is a `ConfigurationError` that shows `example`."""
    number = whole_number(value)
    if number is None or number < 1:
        raise ConfigurationError(
            f"{name} is {value!r}; it has to be a whole number of at least 1, as in {example}"
        )
    return number
