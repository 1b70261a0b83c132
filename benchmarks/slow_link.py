"""One worker behind a slow link: how many steps the others make while it trains, and while it stands still.

    python -m benchmarks.slow_link [--rounds 9] [--megabits 8] [--hidden 500] [--seconds 8]

A server and three workers, each on a host of its own (network namespaces), train under `Async`. The last worker's link
is slow both ways (`tc … tbf`). It trains and stands still in turns, and what counts is the ratio of the others' steps
within each round.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORKERS, SLOW = 3, 2
SETTLING = 1.0
"""Seconds after each change that are not counted."""


def train(directory: Path, hidden: int) -> None:
    """Train as one worker until the end is signalled, and record the number of steps in a file."""
    import optax

    import stratagem as sg
    from benchmarks.racing.jax_model import loss_fn

    strategy = sg.ParameterServerStrategy()
    index = strategy.workers.index
    random = np.random.default_rng(index)
    layers = [
        (random.normal(0, 0.05, shape).astype(np.float32), np.zeros(shape[1], np.float32))
        for shape in itertools.pairwise((784, hidden, 10))
    ]
    batch = random.random((100, 784), np.float32), random.integers(10, size=100).astype(np.int32)
    state, step = strategy.init(layers, optax.sgd(0.1)), strategy.train_step(loss_fn)
    steps = np.memmap(directory / f"steps-{index}", np.int64, "w+", shape=(1,))
    stands, ends = directory / "stands", directory / "ends"
    while not ends.exists():
        if index == SLOW and stands.exists():
            time.sleep(0.01)  # it is what this phase is about: to do nothing
            continue
        state, _ = step(state, batch)
        steps[0] += 1
    strategy.close()


def measure(directory: Path, rounds: int, seconds: float) -> list[tuple[float, float, int]]:
    """Return the others' steps per second in each round, while the slow worker halts and while it trains; and its own steps."""
    steps = [np.memmap(directory / f"steps-{index}", np.int64, "r", shape=(1,)) for index in range(WORKERS)]
    stands = directory / "stands"

    def phase() -> tuple[float, int]:
        time.sleep(SETTLING)
        before, began = [int(each[0]) for each in steps], time.monotonic()
        time.sleep(seconds)  # how long it is measured
        made = [int(each[0]) - old for each, old in zip(steps, before, strict=True)]
        return sum(made[:SLOW]) / (time.monotonic() - began), made[SLOW]

    found = []
    for _ in range(rounds):
        stands.touch()
        alone, _ = phase()
        stands.unlink()
        beside, own = phase()
        found.append((alone, beside, own))
    return found


def main() -> None:
    """Start the job, measure, and print a line per round and the median."""
    from drills.hosts import simulated_hosts
    from drills.nursery import Nursery
    from drills.processes import until

    parser = argparse.ArgumentParser(prog="slow_link", description="Who is held up by a slow link.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--megabits", type=float, default=8.0, help="of the slow link, per second and direction"
    )
    parser.add_argument(
        "--hidden", type=int, default=500, help="width of the model: 500 are 1.6 MB, 4000 12.7 MB"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="that each phase is measured")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        simulated_hosts(1 + WORKERS) as hosts,
        Nursery() as nursery,
        nursery.job(Path(place), 1, WORKERS, hosts) as job,
    ):
        directory = Path(place)
        server = job.serve(0)
        workers = [
            job.start("worker", index, Path(__file__), place, options.hidden) for index in range(WORKERS)
        ]
        for index in range(WORKERS):
            until(f"worker {index} to train", (directory / f"steps-{index}").exists, 90)
        hosts[-1].limit(options.megabits)
        found = measure(directory, options.rounds, options.seconds)
        hosts[-1].limit(None)
        (directory / "ends").touch()
        for task in (*workers, server):
            task.ends_well()
    for alone, beside, own in found:
        print(
            f"{alone:7.1f} steps/s while it stands, {beside:7.1f} while it trains ({own} steps): {beside / alone:.3f}"
        )
    print(f"median: {statistics.median(beside / alone for alone, beside, _ in found):.3f}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
