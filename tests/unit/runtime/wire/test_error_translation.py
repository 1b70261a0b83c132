"""Errors on their way to the caller."""

from collections.abc import Iterator

import pytest

from stratagem import errors
from stratagem.errors import RemoteCallError, StratagemError
from stratagem.runtime.wire.error_translation import describe_failure, rebuild_failure


def all_errors(kind: type[StratagemError]) -> Iterator[type[StratagemError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from all_errors(each)


@pytest.mark.parametrize("kind", sorted(set(all_errors(StratagemError)), key=str))
def test_our_errors_travel_as_themselves(kind: type[StratagemError]) -> None:
    try:
        raise kind("what happened")
    except StratagemError as error:
        found = rebuild_failure(describe_failure(error), "/job:ps/task:3")
    assert type(found) is kind
    assert vars(found)["task"] == "/job:ps/task:3"
    assert "what happened" in str(found)
    assert "test_our_errors_travel" in str(found)
    assert "test_our_errors_travel" in vars(found)["remote_traceback"]


@pytest.mark.parametrize(
    "name", ["ValueError", "KeyError", "Exception", "__builtins__", "annotations", "", "object"]
)
def test_no_other_class_can_be_named(name: str) -> None:
    found = rebuild_failure({"class": name, "message": "m", "traceback": "t"}, "task")
    assert type(found) is RemoteCallError
    assert name in str(found)
    assert rebuild_failure({}, "task").remote_traceback is None  # type: ignore[attr-defined]


def test_failures_are_cut_to_a_length() -> None:
    assert len(describe_failure(ValueError("x" * 10**6))["message"]) < 20_000


def test_errors_are_found_by_the_names_of_their_classes() -> None:
    for kind in all_errors(StratagemError):
        assert vars(errors)[kind.__name__] is kind
