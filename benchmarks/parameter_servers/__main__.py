"""Global steps per second with parameter servers: Stratagem's, TensorFlow's, and no server at all, in one run.

    python -m benchmarks.parameter_servers [--race "async, 2 workers"] [--rounds 15] [--seconds 1] [--json]

Every contender has processes of its own: a server and its workers, on one host. Stratagem's are started by `stratagem
run`. Batches are of 100 rows for each worker. Steps are counted by worker 0, which reads the global step at both ends
of its turn; where there is no server, each worker counts its own and the sum counts. Contenders take turns, so that
what disturbs one disturbs all. On a machine where others are at work the ratio by CPU time says more than that of
rates: whoever has more threads gets more of the cores.
"""

import argparse
import json
import signal
import sys
from typing import cast

from benchmarks.parameter_servers.accuracy import compare_accuracy, has_failed, show_accuracy
from benchmarks.parameter_servers.races import LARGE, LARGE_RACE, RACES
from benchmarks.parameter_servers.running import Job, RunningJob
from benchmarks.racing.measuring import measure
from benchmarks.racing.races import Contender
from benchmarks.racing.report import as_data, show
from benchmarks.racing.work import MODELS, SMALL

ACCURACY = "accuracy"


def main() -> None:
    races = [*((SMALL, race) for race in RACES), (LARGE, LARGE_RACE)]
    names = [*(race.name for _, race in races), ACCURACY]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parameter_servers",
        description="Parameter servers against TensorFlow's, and against no servers at all.",
    )
    parser.add_argument("--race", action="append", choices=names, help="only this race")
    parser.add_argument("--rounds", type=int, default=15, help="how often each contender has its turn")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a turn is")
    parser.add_argument("--json", action="store_true", help="all figures as JSON instead of tables")
    options = parser.parse_args()
    wanted = options.race or names
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
    outcomes = []
    for model, race in races:
        if race.name in wanted:
            outcomes.append(measure(race, model, "global steps", _start, options.rounds, options.seconds))
            if not options.json:
                show(outcomes[-1])
    accuracy = compare_accuracy() if ACCURACY in wanted else {}
    if options.json:
        print(json.dumps({"races": as_data(outcomes), ACCURACY: accuracy}, indent=2))
    elif accuracy:
        show_accuracy(accuracy)
    sys.exit(any(outcome.failed for outcome in outcomes) or has_failed(accuracy))


def _start(contender: Contender, threads: int | None) -> RunningJob:
    job = cast(Job, contender)
    return RunningJob(job, job.task_json(MODELS[SMALL], threads), threads)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
