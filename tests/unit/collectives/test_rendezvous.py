"""A worker that is not met in time is named, whatever was being done when the time was over."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratagem.collectives.group_state import GroupState
from stratagem.collectives.members import Members
from stratagem.collectives.rendezvous import meet
from stratagem.errors import DeadlineExceeded, RemoteError, TaskUnreachable, UnknownCall

TASK = "/job:worker/task:1"
NO_SUCH_CALL = UnknownCall("no such call: 'meet'")
TOO_LATE = DeadlineExceeded(f"{TASK} did not answer: its caller's time was over")


def met(forming: float, *problems: RemoteError) -> BaseException | None:
    """What comes of meeting a worker whose calls end so, one after the other and then as the last."""
    left = list(problems)

    def call(*_: object, **__: object) -> None:
        raise left.pop(0) if len(left) > 1 else left[0]

    members = SimpleNamespace(
        name="workers",
        tasks=("/job:worker/task:0", TASK),
        index=0,
        count=2,
        options=SimpleNamespace(forming=forming),
        peers={TASK: SimpleNamespace(call=call)},
        name_of=lambda call: call,
    )
    state = SimpleNamespace(generation=0, token="")
    return meet(
        cast(Members, cast(Any, members)),
        cast(GroupState, cast(Any, state)),
        1,
        lambda _, seconds: Event().wait(seconds),
    )


@pytest.mark.parametrize(
    ("problems", "said"),
    [([NO_SUCH_CALL, TOO_LATE], "it is up, but has not made the group yet"), ([TOO_LATE], "did not answer")],
)
def test_the_last_call_before_the_time_is_over_may_be_cut_short(
    problems: list[RemoteError], said: str
) -> None:
    error = met(0.05, *problems)
    assert isinstance(error, TaskUnreachable)
    assert error.task == TASK
    assert said in str(error)
    assert "did not join the group 'workers' within 0.05 s" in str(error)
