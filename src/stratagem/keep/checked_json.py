"""JSON from outside, checked step by step, with errors that say where it is wrong; and plain values for JSON."""

import json
import math
from collections.abc import Iterable
from typing import Any

from stratagem.errors import KeepError

_DEEPEST = 32
_SHOWN = 80


class JsonField:
    """A value, and its place in the JSON that was read.

    Example:
        >>> JsonField({"nbytes": 8}).members()["nbytes"].whole()
        8
    """

    def __init__(self, value: Any, where: str = "") -> None:
        self.value = value
        self.where = where

    def text(self) -> str:
        """Return the value, which must be text."""
        if type(self.value) is not str:
            raise self.error("text")
        return self.value

    def whole(self) -> int:
        """Return the value, which must be a whole number from 0 up."""
        if type(self.value) is not int or self.value < 0:
            raise self.error("a whole number from 0 up")
        return self.value

    def items(self) -> list["JsonField"]:
        """Return the values of a list."""
        if type(self.value) is not list:
            raise self.error("a list")
        return [JsonField(value, f"{self.where}[{index}]") for index, value in enumerate(self.value)]

    def members(self) -> dict[str, "JsonField"]:
        """Return the values of an object, by name."""
        if type(self.value) is not dict or not all(type(name) is str for name in self.value):
            raise self.error("an object")
        return {name: JsonField(value, self._inner(name)) for name, value in self.value.items()}

    def exactly(self, names: Iterable[str]) -> dict[str, "JsonField"]:
        """Return the values of an object that must have these names and no other."""
        members = self.members()
        expected = set(names)
        if missing := expected - set(members):
            raise KeepError(f"{self._place()}has no {', '.join(sorted(missing))}")
        if unknown := set(members) - expected:
            raise KeepError(
                f"{self._place()}has {excerpt(sorted(unknown))}, which is not known; "
                f"it has {', '.join(sorted(expected))}"
            )
        return members

    def error(self, expected: str) -> KeepError:
        """Return an error that shows the value and says what it must be."""
        return KeepError(f"{self._place()}is {excerpt(self.value)}; it must be {expected}")

    def _inner(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name

    def _place(self) -> str:
        return f"{self.where} " if self.where else "it "


def plain(value: Any, where: str, depth: int = _DEEPEST) -> Any:
    """Return a copy of a value that JSON can carry unchanged, tuples as lists.

    Raises:
        KeepError: Something in it is of another type; the message says where.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    if depth == 0:
        raise KeepError(f"{where} is nested deeper than {_DEEPEST}; make it flatter")
    if type(value) in (list, tuple):
        return [plain(item, f"{where}[{index}]", depth - 1) for index, item in enumerate(value)]
    if type(value) is dict:
        for name in value:
            if type(name) is not str:
                raise KeepError(
                    f"{where} has the key {excerpt(name)}; keys must be text, such as {str(name)!r:.40}"
                )
        return {name: plain(item, f"{where}[{name!r}]", depth - 1) for name, item in value.items()}
    raise KeepError(
        f"{where} is {excerpt(value)}, a {type(value).__name__}; it must be None, a bool, an int, a finite float, "
        "text, or lists and dictionaries of these: arrays belong in a shard"
    )


def compact(value: Any) -> bytes:
    """Return plain values as JSON: always the same bytes for the same values in the same order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def parse_json(data: bytes) -> Any:
    """Return the plain values in JSON; `KeepError` says what is wrong with it."""
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise KeepError(f"it is not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def excerpt(value: object) -> str:
    """Return a value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
