"""Keras models under strategies; run as a script, in as many processes as these want.

python keras_job.py DIRECTORY 'sg.MirroredStrategy()' CASE,CASE... leaves each worker's results in
DIRECTORY/0/WORKER.npz; further strategies of this one process may follow, each with its cases. `None` is plain Keras.
"""

import os
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import stratagem as sg

os.environ["KERAS_BACKEND"] = "jax"
if count := os.environ.get("KERAS_DEVICES"):
    sg.configure(virtual_devices=int(count))

import numpy as np

from unit.keras.cases import CASES, Place, run


def results(strategy: Any, directory: Path, names: list[str]) -> None:
    worker, workers = (strategy.workers.index, strategy.workers.count) if strategy else (0, 1)
    found: dict[str, Any] = {}
    for name in names:
        own = directory / name
        own.mkdir(parents=True, exist_ok=True)
        place = Place(own, strategy.scope if strategy else nullcontext, worker, workers)
        case = CASES["intact" if name == "failing" and strategy is None else name]
        try:
            # Each worker begins with other values: the chief's count.
            told = run(case, place, seed=1 + worker)
        except Exception:  # noqa: BLE001
            # Workers fail alike; what else there is to see is not to be lost.
            told = {"failed": np.asarray(traceback.format_exc())}
        found.update({f"{name}/{what}": value for what, value in told.items()})
    np.savez(directory / f"{worker}.npz", allow_pickle=False, **found)


def main(directory: str, *contenders: str) -> None:
    for number, (expression, names) in enumerate(zip(contenders[::2], contenders[1::2], strict=True)):
        strategy = eval(expression)  # noqa: S307
        results(strategy, Path(directory) / str(number), names.split(","))
        if strategy:
            strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
