"""The speeds that the READMEs tell are those of the last report of the benchmarks."""

import json
import re
from typing import Any

import pytest

from benchmarks.results.markdown import report
from benchmarks.results.reasons import Reasons
from documents import ROOT

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+ / [^|]+) \| (\d+\.\d\d) \|$", re.MULTILINE)


def measured() -> dict[tuple[str, str], str]:
    results: dict[str, Any] = json.loads((ROOT / "benchmarks" / "RESULTS.json").read_text())
    figures = {program["program"]: program["figures"] for program in results["programs"]}
    return {
        (f"{race['model']}, {race['race']}", f"{each['name']} / {each['against']}"): (
            f"{each['ratio']['median']:.2f}"
        )
        for race in [*figures["strategies"], *figures["parameter_servers"]["races"], *figures["tables"]]
        for each in race["comparisons"]
    }


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_told_as_measured(page: str) -> None:
    told = ROW.findall((ROOT / page).read_text())
    assert len(told) > 5
    found = measured()
    assert told == [(case, ratio, found[case, ratio]) for case, ratio, _ in told]


def test_the_report_is_that_of_the_figures() -> None:
    """Whoever adds a reason runs `python -m benchmarks --again`."""

    results = json.loads((ROOT / "benchmarks" / "RESULTS.json").read_text())
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == report(results, Reasons())
