"""The report of `make bench-peers`: every figure has its place, and what was missed has its reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import last
from benchmarks.results.markdown import report
from benchmarks.results.reasons import Reasons

REASONS = """
[[reason]]
program = "strategies"
case = "784-500-10, one device"
ratio = "ours / theirs"
why = '''It is the
 weather.'''
"""


def spread(median: float) -> dict[str, float]:
    return {"median": median, "lower quartile": median - 0.1, "upper quartile": median + 0.1, "best": median}


def race(ratio: float, against: str = "theirs", target: float | None = 0.97) -> dict[str, Any]:
    contender = {"threads": "default", "examples per second": spread(5000), "CPU seconds per example": 1e-5}
    comparison = {"ratio": spread(ratio), "ratio by CPU time": 1.0, "ratio of best rounds": 1.1, "aim": 2.0}
    return {
        "model": "784-500-10",
        "race": "one device",
        "load before": 0.5,
        "contenders": [{"name": "ours", **contender}, {"name": "theirs", **contender}],
        "comparisons": [{"name": "ours", "against": against, "target": target, **comparison}],
        "absent": {"others": "they are | not installed"},
        "failed": {"nobody": "it ended\nTraceback\nValueError: the cause"},
    }


def results(program: str, figures: Any) -> dict[str, Any]:
    ran = {
        "program": program,
        "arguments": ["--race", "one device"],
        "load before": 0.1,
        "seconds": 90.0,
        "exit code": 0,
        "begun": "2030-01-01 00:00 UTC",
        "command": "make bench-peers",
    }
    return {
        "machine": {"cores": "2", "processor": "a model"},
        "versions": {"Python": "3.11", "JAX": "0.10"},
        "programs": [{**ran, "figures": figures} if figures is not None else {**ran, "exit code": 1}],
    }


@pytest.fixture
def reasons(tmp_path: Path) -> Reasons:
    path = tmp_path / "reasons.toml"
    path.write_text(REASONS)
    return Reasons(path)


def test_a_race_that_reached_its_target(reasons: Reasons) -> None:
    text = report(results("strategies", [race(1.25)]), reasons)
    assert "1 of 1 targets reached." in text
    assert "| ours / theirs | 1.25 | 1.15 – 1.35 | 1.10 | 1.00 | ≥ 0.97, aim 2 | reached |" in text
    assert "weather" not in text
    assert "| ours | default | 5,000 | 5,000 – 5,000 | 0.01 |" in text
    assert "- absent: others: they are | not installed" in text
    assert "- failed: nobody: it ended … ValueError: the cause" in text
    for word in (
        "| processor | a model |",
        "| JAX | 0.10 |",
        "python -m benchmarks.strategies --race 'one device'",
    ):
        assert word in text


def test_memory_of_servers_and_workers(reasons: Reasons) -> None:
    taken = race(1.25)
    for each in taken["contenders"]:
        each["peak bytes"] = {"ps": 1_234_000_000, "worker": 280_000_000}
    text = report(results("tables", [taken]), reasons)
    assert "| contender | server, MB at most | a worker, MB at most |" in text
    assert "| ours | 1,234 | 280 |" in text


def test_what_was_missed_has_its_reason(reasons: Reasons) -> None:
    text = report(results("strategies", [race(0.5)]), reasons)
    assert "0 of 1 targets reached." in text
    missed = "784-500-10, one device: **ours / theirs** is 0.50 instead of 0.97. It is the weather."
    assert f"- Synchronous strategies, {missed}" in text


def test_a_reason_for_several_ratios_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "reasons.toml"
    path.write_text(REASONS.replace('ratio = "ours / theirs"', ""))
    both = race(0.5)
    both["comparisons"].append({**both["comparisons"][0], "against": "bare JAX"})
    text = report(results("strategies", [both]), Reasons(path))
    assert "0 of 2 targets reached." in text
    told = "**ours / theirs** is 0.50 instead of 0.97; **ours / bare JAX** is 0.50 instead of 0.97. It is the weather."
    assert told in text
    assert text.count("weather") == 1


@pytest.mark.parametrize(
    ("ratio", "against", "is_told"),
    [(0.8, "TensorFlow Mirrored", True), (0.99, "TensorFlow Mirrored", False), (0.8, "no server", False)],
)
def test_a_faster_peer_is_not_passed_over(
    reasons: Reasons, ratio: float, against: str, is_told: bool
) -> None:
    text = report(results("strategies", [race(ratio, against, target=None)]), reasons)
    assert ("Slower than a peer" in text) == is_told
    assert (f"**ours / {against}** is {ratio:.2f}. No reason is written down" in text) == is_told
    assert "targets reached" not in text


def test_a_missing_reason_is_asked_for(reasons: Reasons) -> None:
    line = {
        "case": "1.6 MB",
        "name": "tcp",
        "against": "bare",
        "microseconds": 200.0,
        "microseconds against": 100.0,
        "ratio": spread(2.0),
    }
    lines = [
        {**line, "most": 1.3, "most microseconds": None},
        {**line, "case": "an empty call", "most": None, "most microseconds": 150.0},
        {**line, "case": "64 MB", "most": None, "most microseconds": None},
    ]
    text = report(results("wire", lines), reasons)
    assert (
        "The wire, 1.6 MB: **tcp / bare** is 2.00 instead of at most 1.3. No reason is written down yet"
        in text
    )
    assert "**tcp / bare** is 200 µs instead of at most 150" in text
    assert "| 64 MB | tcp / bare | 200.0 | 100.0 | 2.00 | 1.90 – 2.10 |  |  |" in text


@pytest.mark.parametrize(
    ("theirs", "said"),
    [(88.5, "Difference: -0.50 points: reached."), (90.0, "Difference: -2.00 points: **missed**.")],
)
def test_accuracy_is_compared(reasons: Reasons, theirs: float, said: str) -> None:
    figures = {"races": [], "accuracy": {"Async()": 88.0, "TensorFlow": theirs}}
    text = report(results("parameter_servers", figures), reasons)
    assert "| Async() | 88.00 % |" in text
    assert said in text


def test_accuracy_without_a_peer_is_not_judged(reasons: Reasons) -> None:
    figures = {
        "races": [],
        "accuracy": {"Async()": 88.0, "TensorFlow": "absent: No module named 'tensorflow'"},
    }
    text = report(results("parameter_servers", figures), reasons)
    assert "Difference" not in text
    assert "absent: No module named 'tensorflow'" in text


def test_records_per_second(reasons: Reasons) -> None:
    line = {"pixels": "bytes", "batch": 128, "threads": 1, "stratagem": 9000.0, "tf.data": 6000.0}
    text = report(results("tfrecord", [{**line, "ratio": spread(1.5), "target": 1.0}]), reasons)
    assert "| bytes, batch 128, threads 1 | 9,000 | 6,000 | 1.50 | 1.40 – 1.60 | ≥ 1 | reached |" in text


def test_a_program_that_failed_is_told(reasons: Reasons) -> None:
    assert "**It failed**, with exit code 1." in report(results("wire", None), reasons)


def test_the_reasons_that_are_written_down_can_be_read() -> None:
    assert "No reason" in Reasons().why("wire", "no such case", "none")


def test_results_of_other_versions_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert last(file, {"JAX": "0.10"}) == {}
    of_all = results("wire", None)
    file.write_text(json.dumps(of_all))
    assert last(file, of_all["versions"]) == {"wire": of_all["programs"][0]}
    assert not capsys.readouterr().err
    assert last(file, {**of_all["versions"], "JAX": "0.11"}) == {}
    assert "of other versions" in capsys.readouterr().err
