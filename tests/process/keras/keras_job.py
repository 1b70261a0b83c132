"""Keras models under a strategy; run as a script, in as many processes as the strategy wants.

python keras_job.py 'sg.MirroredStrategy()' DIRECTORY CASE..., where each worker leaves DIRECTORY/INDEX.npz
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import stratagem as sg

os.environ["KERAS_BACKEND"] = "jax"
if count := os.environ.get("KERAS_DEVICES"):
    sg.configure(virtual_devices=int(count))

import numpy as np

from unit.keras.cases import Place, run


def main(expression: str, directory: str, *names: str) -> None:
    strategy = eval(expression)  # noqa: S307
    index = strategy.workers.index
    found: dict[str, Any] = {}
    for name in names:
        place = Path(directory) / name
        place.mkdir(exist_ok=True)
        try:
            # Each worker begins with other values: the chief's count.
            results = run(name, Place(place, strategy.scope, index), seed=1 + index)
        except Exception:
            # Workers fail alike; what else there is to see is not to be lost.
            results = {"failed": np.asarray(traceback.format_exc())}
        found.update({f"{name}/{what}": value for what, value in results.items()})
    np.savez(Path(directory) / f"{index}.npz", allow_pickle=False, **found)
    strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
