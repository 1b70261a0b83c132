"""Global steps per second with tables on a parameter server, and the memory they take: Stratagem's and TensorFlow's.

    python -m benchmarks.tables [--rows 10000,100000000] [--race Zipf] [--rounds 9] [--seconds 1] [--json]

One server and two workers on one host, batches of 256 examples, rows of 16 numbers, Adagrad. With one table each example
has 8 ids: of a pool of 200,000, all of which were seen before it is measured, or always others. With 26 tables, of 1,000
to 1,000,000 rows, it has one id of each, drawn after Zipf's law. Beside these, PyTorch's DDP, every worker of which has all
rows. Then one thing at a time grows: ids per example, tables, servers, workers. Contenders take turns, as everywhere here.
"""

import argparse
import json
import signal
import sys
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from benchmarks.parameter_servers.running import Job
from benchmarks.racing.measuring import measure
from benchmarks.racing.races import Contender
from benchmarks.racing.report import WIDTH, as_data, show
from benchmarks.tables.races import races
from benchmarks.tables.running import RunningTables

ROWS = "10000,1000000,10000000,100000000"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tables",
        description="Tables by row against TensorFlow's and PyTorch's embeddings.",
    )
    parser.add_argument("--rows", default=ROWS, help="numbers of rows of the one table, with commas")
    parser.add_argument("--race", action="append", help="only this race, by its name")
    parser.add_argument("--rounds", type=int, default=9, help="how often each contender has its turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a turn is")
    parser.add_argument("--json", action="store_true", help="all figures as JSON instead of tables")
    options = parser.parse_args()
    known = races([int(word) for word in options.rows.split(",") if word])
    unknown = set(options.race or ()) - {race.name for _, race, _ in known}
    if unknown:
        parser.error(f"--race {unknown.pop()!r}: there are {[race.name for _, race, _ in known]}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
    found = []
    for model, race, work in known:
        if options.race and race.name not in options.race:
            continue
        peaks: dict[str, dict[str, int]] = {}

        def start(
            contender: Contender, threads: int | None, work: Any = work, peaks: Any = peaks
        ) -> RunningTables:
            own = peaks.setdefault(contender.name, {})
            return RunningTables(cast(Job, contender), work, threads, own)

        outcome = measure(race, model, "global steps", start, options.rounds, options.seconds)
        [data] = as_data([outcome])
        for each in data["contenders"]:
            each["peak bytes"] = peaks[each["name"]]
        found.append(data)
        if not options.json:
            show(outcome)
            _show_memory(data)
    if options.json:
        print(json.dumps(found, indent=2))
    sys.exit(any(each["failed"] for each in found))


def _show_memory(data: dict[str, Any]) -> None:
    table = Table("contender", "server, MB at most", "a worker, MB at most")
    for each in data["contenders"]:
        peaks = each["peak bytes"]
        table.add_row(each["name"], *(f"{peaks.get(task, 0) / 1e6:,.0f}" for task in ("ps", "worker")))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
