"""Every benchmark, one after the other, and the file that tells what they came to.

    python -m benchmarks [--rounds N] [--only strategies] [--race "one device"] [--to benchmarks/RESULTS.md] [--again]

The figures go to a JSON file beside it. With `--only`, those of the other benchmarks stay as they were measured last, if
the versions are the same. `--again` writes the file from those, without measuring anything: for a reason
that was written down after the run (benchmarks/results/reasons.toml).
"""

import argparse
import json
import os
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.results.machine import machine, versions
from benchmarks.results.markdown import report
from benchmarks.results.programs import PROGRAMS, ROOT, run
from benchmarks.results.reasons import Reasons

USUAL = ROOT / "benchmarks" / "RESULTS.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Every benchmark, and the report."
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each contender has its turn; by default each its own number"
    )
    parser.add_argument(
        "--only", action="append", choices=[program.name for program in PROGRAMS], help="only this benchmark"
    )
    parser.add_argument("--race", action="append", default=[], help="only this race of those who have races")
    parser.add_argument("--to", type=Path, default=USUAL, help="the report; figures go beside it, as .json")
    parser.add_argument("--again", action="store_true", help="write the report from the last figures")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: give at least 1")
    if not options.to.absolute().parent.is_dir():
        parser.error(f"--to {options.to}: there is no directory {options.to.absolute().parent}")
    figures = options.to.with_suffix(".json")
    reasons = Reasons()
    if options.again:
        results = json.loads(figures.read_text())
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
        results = measure(options, figures)
    options.to.write_text(report(results, reasons))
    print(f"The report is in {options.to}")
    sys.exit(any(each["exit code"] != 0 for each in results["programs"]))


def measure(options: argparse.Namespace, figures: Path) -> dict[str, Any]:
    """Run the benchmarks that are wanted, and return their results, with those of the others that are still valid."""
    wanted = [program for program in PROGRAMS if options.only is None or program.name in options.only]
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "programs": [],
    }
    command = os.environ.get("BENCHMARK_COMMAND") or "python -m benchmarks " + shlex.join(sys.argv[1:])
    by_name = {} if options.only is None else last(figures, results["versions"])
    for program in wanted:
        print(f"{program.title}:", file=sys.stderr)
        begun = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        result = run(program, options.rounds, options.race)
        by_name[program.name] = {**result, "begun": begun, "command": command}
        results["programs"] = [by_name[each.name] for each in PROGRAMS if each.name in by_name]
        # Each at once: what was measured in half an hour is not lost with what comes after it.
        figures.write_text(json.dumps(results, indent=1) + "\n")
    return results


def last(figures: Path, versions: dict[str, str]) -> dict[str, Any]:
    """Return the results that are there, by program; none if they were measured with other versions."""
    if not figures.exists():
        return {}
    results = json.loads(figures.read_text())
    if results["versions"] != versions:
        print(f"{figures} has results of other versions: they are not kept", file=sys.stderr)
        return {}
    return {each["program"]: each for each in results["programs"]}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
