"""Trains a table row by row on two devices, and as a dense variable on one; run as a script.

python tables_job.py 'sg.MirroredStrategy()' RESULTS.npz
"""

import sys
from typing import Any

import stratagem as sg

if __name__ == "__main__":
    sg.configure(virtual_devices=2)

import numpy as np

from table_training import OPTIMIZERS, trained_by_row, trained_densely


def main(expression: str, path: str) -> None:
    strategy = eval(expression, {"sg": sg})  # noqa: S307  our own test gives it
    results: dict[str, Any] = {}
    for name, optimizer in OPTIMIZERS.items():
        for way, trained in [
            ("by row", trained_by_row(strategy, optimizer)),
            ("densely", trained_densely(optimizer)),
        ]:
            results |= {f"{name}/{way}/{kind}": value for kind, value in trained._asdict().items()}
    np.savez(path, replicas=strategy.num_replicas_in_sync, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
