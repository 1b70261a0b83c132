"""Examples per second of the synchronous strategies, of bare JAX, TensorFlow and PyTorch, in one run.

    python -m benchmarks.strategies [--model 784-500-10] [--race "one device"] [--rounds 21] [--seconds 0.5] [--json]

Every contender has processes of its own and trains the same model on the same NumPy batches, from the same
parameters; it is checked that they start out with the same losses. Time includes the feeding. Those of several
processes and those of other frameworks run with the number of threads that suits them best, found in a warm-up.
Then the contenders take turns, many and short, so that what disturbs one disturbs all: what counts are the ratios
within rounds.
"""

import argparse
import json
import signal
import sys
from functools import partial

from benchmarks.racing.measuring import measure
from benchmarks.racing.races import Contender
from benchmarks.racing.report import as_data, show
from benchmarks.racing.work import MODELS, Work
from benchmarks.strategies.races import RACES
from benchmarks.strategies.running import Running


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategies",
        description="The synchronous strategies against bare JAX, TensorFlow and PyTorch.",
    )
    parser.add_argument("--model", action="append", choices=MODELS, help="only this model")
    parser.add_argument(
        "--race", action="append", choices=[race.name for race in RACES], help="only this race"
    )
    parser.add_argument("--rounds", type=int, default=21, help="how often each contender has its turn")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a turn is, about")
    parser.add_argument("--json", action="store_true", help="all figures as JSON instead of tables")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
    outcomes = []
    for model in options.model or MODELS:
        for race in RACES:
            if options.race is None or race.name in options.race:
                work = Work(MODELS[model], race.replicas)
                start = partial(_start, work, race.devices)
                outcomes.append(measure(race, model, "examples", start, options.rounds, options.seconds))
                if not options.json:
                    show(outcomes[-1])
    if options.json:
        print(json.dumps(as_data(outcomes), indent=2))
    sys.exit(any(outcome.failed for outcome in outcomes))


def _start(work: Work, devices: int, contender: Contender, threads: int | None) -> Running:
    return Running(contender, work, devices, threads)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
