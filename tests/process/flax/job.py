"""Flax models under a strategy; run as a script, in as many processes as the strategy wants.

python job.py 'sg.MirroredStrategy()' RESULTS, where each worker leaves RESULTS-INDEX.npz
"""

import os
import sys

import stratagem as sg

if count := os.environ.get("FLAX_DEVICES"):
    sg.configure(virtual_devices=int(count))

import numpy as np

from unit.flax.models import trained

STEPS = 6


def main(expression: str, path: str) -> None:
    strategy = eval(expression)  # noqa: S307
    config = sg.resolve_cluster()
    runs = {
        "dense": trained(strategy, "dense", STEPS, with_flax_optimizer=True),
        "noisy": trained(strategy, "noisy", STEPS),
    }
    found = {f"{run}/{name}": value for run, values in runs.items() for name, value in values.items()}
    np.savez(f"{path}-{config.task_index if config else 0}.npz", allow_pickle=False, **found)
    strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
