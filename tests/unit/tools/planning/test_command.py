"""`stratagem plan` as users type it."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from stratagem.tools.launch.plan import plan

BASIC = ["--step-time", "50ms", "--model-size", "25Mparams"]


def test_a_table_and_advice() -> None:
    result = CliRunner().invoke(
        plan, [*BASIC, "--workers", "1,2,…,8", "--batch", "32", "--stragglers", "lognormal:0.1"]
    )
    assert result.exit_code == 0, result.output
    assert "model 100 MB · link 1.25 GB/s" in result.output
    assert "stragglers lognormal:0.1" in result.output
    for word in ("all-reduce", "sync", "backup 1", "async", "bounded 4", "fits best"):
        assert word in result.output


def test_json_for_machines() -> None:
    arguments = [
        *("--workers", "2,4", "--rules", "async,bounded", "--staleness", "7", "--servers", "2", "--json"),
        *("--bandwidth", "25Gbit", "--latency", "10us", "--update-per-byte", "1ns", "--mtbf", "24h"),
    ]
    result = CliRunner().invoke(plan, [*BASIC, *arguments])
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [(each["workers"], each["label"], each["servers"]) for each in said["plan"]] == [
        (2, "async", 2),
        (2, "bounded 7", 2),
        (4, "async", 2),
        (4, "bounded 7", 2),
    ]
    figures = said["figures"]
    told = (figures["bandwidth"], figures["latency"], figures["update_per_byte"])
    assert told == pytest.approx((25e9 / 8, 1e-5, 1e-9))
    assert figures["failures"]["mtbf"] == 86400
    assert said["plan"][0]["examples_per_second"] is None


@pytest.mark.parametrize(
    ("workers", "counts"), [("1,2,...,16", [1, 2, 4, 8, 16]), ("3,…,20", [3, 6, 12, 20]), ("1,…,2", [1, 2])]
)
def test_lists_that_double(workers: str, counts: list[int]) -> None:
    result = CliRunner().invoke(plan, [*BASIC, "--workers", workers, "--rules", "all-reduce", "--json"])
    assert [each["workers"] for each in json.loads(result.output)["plan"]] == counts


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--step-time", "50ms"], "give the model's size, such as --model-size 100MB"),
        (["--model-size", "1MB"], "--step-time 50ms, or --measure"),
        ([*BASIC, "--bandwidth", "10"], "'10' is not a bandwidth"),
        ([*BASIC, "--latency", "fast"], "'fast' is not a time"),
        ([*BASIC, "--stragglers", "some"], "'some' is not understood"),
        ([*BASIC, "--workers", "4,2"], "'2' is out of place"),
        ([*BASIC, "--workers", "one"], "'one' is out of place"),
        ([*BASIC, "--workers", "…,4"], "'4' is out of place"),
        ([*BASIC, "--workers", "1,…"], "say where it ends"),
        ([*BASIC, "--rules", "async,quick"], "there is no rule 'quick'"),
        ([*BASIC, "--mtbf", "0s"], "mean time between failures of 0 s"),
        ([*BASIC, "--servers", "0"], "0 servers"),
        (
            ["--step-time", "0s", "--model-size", "1MB"],
            "step_time=0.0 cannot be planned with: give more than 0",
        ),
    ],
)
def test_mistakes_are_answered_with_what_to_do(arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stratagem", "plan", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_planning_needs_no_jax() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from stratagem.tools.launch.plan import plan; "
        f"assert CliRunner().invoke(plan, {BASIC!r}).exit_code == 0; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
