"""What was measured, as a table and as plain values."""

import io
import json

from rich.console import Console

from stratagem.tools.bench.report import plain_results, results_table, rows
from unit.tools.bench.measured import failed, result

RESULTS = [
    result("one-device", 1, [1000, 2000, 1200], loss=0.5),
    result("async", 2, [1800], loss=0.75, staleness=1.25),
    failed("sync", 2),
]


def test_a_row_for_each_contender() -> None:
    assert rows(RESULTS) == [
        ("one device", "12", "1,200", "100%", "0.500", "–"),
        ("servers, async, 2 workers", "18", "1,800", "75%", "0.750", "1.2 (≤ 3)"),
        ("servers, sync, 2 workers", "failed", "–", "–", "–", "–"),
    ]


def test_without_one_device_there_is_no_efficiency() -> None:
    assert rows([failed("one-device", 1), RESULTS[1]])[1][3] == "–"


def test_the_table_fits_a_terminal() -> None:
    console = Console(width=100, file=io.StringIO())
    with console.capture() as captured:
        console.print(results_table(RESULTS, 3.0))
    lines = captured.get().splitlines()
    assert lines[0].split() == [
        *("contender", "steps/s", "examples/s", "efficiency", "loss", "after", "3", "s", "staleness")
    ]
    assert len(lines) == 1 + len(RESULTS)


def test_plain_values_are_json() -> None:
    said = json.loads(json.dumps(plain_results(RESULTS, {"batch": 100}, {"cores": 2}, ["Use it."])))
    assert (said["asked"], said["machine"], said["advice"]) == ({"batch": 100}, {"cores": 2}, ["Use it."])
    one, apart, broken = said["contenders"]
    assert one["examples_per_second"] == 1200
    assert len(one["rounds"]) == 3
    assert (apart["workers"], apart["efficiency"], apart["staleness"]) == (2, 0.75, 1.25)
    assert "the cause" in broken["failure"]
    assert broken["rounds"] == []


def test_a_loss_that_went_astray_is_none_in_json() -> None:
    said = plain_results([result("one-device", 1, [1000], loss=float("nan"))], {}, {}, [])
    json.dumps(said, allow_nan=False)
    assert said["contenders"][0]["loss"] is None
