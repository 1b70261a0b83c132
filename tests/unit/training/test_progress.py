"""Progress without a terminal: what is counted, and what the lines say."""

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from stratagem.training.cluster_status import worker_lines
from stratagem.training.progress_display import (
    WINDOW_SECONDS,
    Pace,
    are_ready,
    details_text,
    scalar_metrics,
)

CHIEF = SimpleNamespace(is_chief=True)


def batches(count: int) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    return [(np.zeros((8, 2)), np.zeros(8))] * count


def steps_told(text: str) -> list[str]:
    return re.findall(r"step (\S+?):? ", text)


def test_a_line_every_so_many_steps_and_one_at_the_end() -> None:
    file = io.StringIO()
    steps = sg.progress(batches(25), every=10, strategy=CHIEF, file=file)
    for number, _ in enumerate(steps):
        steps.tell({"loss": jnp.float32(number), "accuracy": 0.5})
    lines = file.getvalue().splitlines()
    assert [line.partition(", ")[0] for line in lines] == [
        "step 10/25: loss 9",
        "step 20/25: loss 19",
        "step 25/25: loss 24",
    ]
    assert all("accuracy 0.5, " in line and " examples/s" in line for line in lines)
    assert " left" in lines[0] and " in all" in lines[-1]


def test_steps_are_counted_without_being_told_of() -> None:
    file = io.StringIO()
    assert len(list(sg.progress(iter(batches(4)), every=2, strategy=CHIEF, file=file))) == 4
    assert steps_told(file.getvalue()) == ["2", "4"]


def test_a_step_told_of_twice_counts_once() -> None:
    steps = sg.progress(batches(3), display="off")
    for _ in steps:
        steps.tell({})
        steps.tell({})
    assert steps.pace.steps == 3


def test_a_loop_that_is_left_tells_of_its_last_step() -> None:
    file = io.StringIO()
    steps = sg.progress(batches(100), every=50, strategy=CHIEF, file=file)
    for number, _ in enumerate(steps):
        steps.tell({"loss": number})
        if number == 6:
            break
    assert steps_told(file.getvalue()) == ["7/100"]


def test_each_pass_counts_anew() -> None:
    file = io.StringIO()
    steps = sg.progress(batches(3), every=3, strategy=CHIEF, file=file)
    for _ in range(2):
        for _ in steps:
            steps.tell({})
    assert steps_told(file.getvalue()) == ["3/3", "3/3"]


@pytest.mark.parametrize("total", [None, 25])
def test_a_resumed_training_counts_from_its_checkpoint_and_ends_at_its_end(total: int | None) -> None:
    file = io.StringIO()
    for _ in sg.progress(batches(10), total, resumed_at=15, every=5, strategy=CHIEF, file=file):
        pass
    first, last = file.getvalue().splitlines()
    assert first.startswith("step 20/25: ") and " left" in first
    assert last.startswith("step 25/25: ") and last.endswith(" since step 15")


@pytest.mark.parametrize("count", [10, 12])
def test_batches_that_end_before_the_total_end_the_time_left(count: int) -> None:
    file = io.StringIO()
    for _ in sg.progress(batches(count), total=25, every=10, strategy=CHIEF, file=file):
        pass
    *_, before, last = file.getvalue().splitlines()
    assert before.startswith("step 10/25: ") and " left" in before
    assert last.startswith(f"step {count}/25: ") and last.endswith(" in all")


def test_a_resumed_training_that_is_left_at_once_says_nothing() -> None:
    file = io.StringIO()
    assert list(sg.progress([], 25, resumed_at=15, strategy=CHIEF, file=file)) == []
    assert file.getvalue() == ""


def test_nothing_to_loop_over_says_nothing() -> None:
    file = io.StringIO()
    assert list(sg.progress([], strategy=CHIEF, file=file)) == []
    assert file.getvalue() == ""


@pytest.mark.parametrize("arguments", [{"display": "off"}, {"strategy": SimpleNamespace(is_chief=False)}])
def test_silence(arguments: dict[str, Any]) -> None:
    file = io.StringIO()
    steps = sg.progress(batches(5), every=1, file=file, **arguments)
    for _ in steps:
        steps.tell({"loss": 1})
    assert file.getvalue() == ""
    assert steps.pace.steps == 5  # measured all the same: summaries want it


def test_one_script_on_all_workers_is_heard_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for index in range(2):
        config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        for _ in sg.progress(batches(2), every=2):
            pass
    out = capsys.readouterr().out
    assert steps_told(out) == ["2/2"]
    assert "examples/s here" in out  # the other worker trains some too


def test_examples_of_all_workers_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    file = io.StringIO()
    list(sg.progress(batches(2), every=2, examples=16, file=file))
    assert file.getvalue().count("examples/s, ") == 1


def test_what_has_no_rows_is_counted_in_steps() -> None:
    file = io.StringIO()
    list(sg.progress(["a", None, {}, 3], every=4, strategy=CHIEF, file=file))
    assert "steps/s" in file.getvalue() and "examples/s" not in file.getvalue()


def test_an_error_of_the_batches_comes_through() -> None:
    def failing() -> Any:
        yield np.zeros(3)
        raise OSError("gone")

    file = io.StringIO()
    with pytest.raises(OSError, match="gone"):
        list(sg.progress(failing(), strategy=CHIEF, file=file))
    assert file.getvalue() == "step 1\n"


@pytest.mark.parametrize(
    "arguments", [{"display": "loud"}, {"every": 0}, {"total": -1}, {"resumed_at": -1}, {"examples": 1.5}]
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(sg.DataError, match=f"{name} is .*give"):
        sg.progress([], **arguments)


def test_speed_is_that_of_the_last_seconds_after_the_first_step() -> None:
    pace = Pace(0.0, total=1000)
    pace.count(100.0, 10)  # compiles
    assert pace.steps_per_second is None and pace.seconds_left is None
    for number in range(1, 301):
        pace.count(100.0 + number / 10, 10)
    assert pace.steps_per_second == pytest.approx(10)
    assert pace.seconds_left == pytest.approx(699 / 10)
    for number in range(1, 11):  # a slower phase, as long as the window
        pace.count(130.0 + number * WINDOW_SECONDS / 10, 10)
    assert pace.steps_per_second == pytest.approx(10 / WINDOW_SECONDS)
    assert pace.examples_per_second == pytest.approx(100 / WINDOW_SECONDS)


def test_more_steps_than_were_announced_take_no_negative_time() -> None:
    pace = Pace(0.0, total=1)
    for second in (1.0, 2.0, 3.0):
        pace.count(second)
    assert pace.seconds_left == 0


def test_two_steps_at_one_moment_have_no_speed() -> None:
    pace = Pace(0.0)
    pace.count(1.0)
    pace.count(1.0)
    assert pace.steps_per_second is None
    assert details_text(pace, {}) == ""


def test_metrics_that_are_no_single_numbers_are_not_shown() -> None:
    told = scalar_metrics(
        {"names": "abc", "spread": np.zeros(2), "loss": jnp.bfloat16(0.5), "global_step": 3, "none": None}
    )
    assert told == {"loss": 0.5, "global_step": 3.0}
    assert are_ready({"loss": 1.0, "late": SimpleNamespace(is_ready=lambda: True)})
    assert not are_ready({"loss": 1.0, "late": SimpleNamespace(is_ready=lambda: False)})


def served(seconds: float, pushes: int, workers: int = 2) -> dict[str, dict[str, Any]]:
    """What a server tells of its workers, each of which has pushed one more than the one before it."""
    tasks = [f"/job:worker/task:{index}" for index in range(workers)]
    pushed = {task: pushes * (index + 1) for index, task in enumerate(tasks)}
    model = {"global_step": 9, "active": tasks, "waits_for": [], "dropped": {}, "pushed": pushed}
    return {"/job:ps/task:0": {"incarnation": "a", "seconds": seconds, "parameters": {"model-0": model}}}


def test_the_speed_of_each_worker() -> None:
    first, second = served(1.0, 10), served(3.0, 50)
    assert worker_lines(first) == ["/job:worker/task:0: trains", "/job:worker/task:1: trains"]
    faster = ["/job:worker/task:0: trains, 20 steps/s", "/job:worker/task:1: trains, 40 steps/s"]
    assert worker_lines(second, first) == faster
    second["/job:ps/task:0"]["incarnation"] = "b"  # started again, and counts anew
    assert worker_lines(second, first) == worker_lines(first)


def test_many_workers_are_not_all_listed() -> None:
    lines = worker_lines(served(1.0, 1, workers=40))
    assert lines[2].startswith("/job:worker/task:2:")
    assert lines[-1] == "and 24 more workers"


def test_a_strategy_with_servers_is_asked() -> None:
    strategy = SimpleNamespace(is_chief=True, status=lambda: served(1.0, 10))
    file = io.StringIO()
    for _ in sg.progress(batches(1), every=1, strategy=strategy, file=file):
        pass
    assert file.getvalue().splitlines()[1:] == [
        "  /job:worker/task:0: trains",
        "  /job:worker/task:1: trains",
    ]


def test_a_line_per_worker() -> None:
    zero, one, two = (f"/job:worker/task:{index}" for index in range(3))
    model = {"global_step": 9, "active": [zero, one], "waits_for": [one], "dropped": {zero: 3}}
    status: dict[str, dict[str, Any]] = {
        "/job:ps/task:0": {"parameters": {"model-0": model}},
        zero: {},
        one: {},
        two: {"error": "no answer"},
    }
    assert worker_lines(status) == [
        f"{zero}: trains, 3 pushes dropped",
        f"{one}: waited for",
        f"{two}: does not answer",
    ]
    file = io.StringIO()
    steps = sg.progress(batches(1), every=1, strategy=CHIEF, file=file)
    for _ in steps:
        steps.tell({"loss": 1.0}, status=status)
    assert file.getvalue().splitlines()[1:] == [f"  {line}" for line in worker_lines(status)]
