"""Flax models under strategies; run as a script, in as many processes as the strategies want.

python job.py RESULTS dense,noisy 'sg.MirroredStrategy()' …, where worker W leaves RESULTS-N-W.npz of the Nth strategy;
`plain` stands for Flax itself.
"""

import os
import sys

import stratagem as sg

if count := os.environ.get("FLAX_DEVICES"):
    sg.configure(virtual_devices=int(count))

import numpy as np

from unit.flax.models import plain, trained

STEPS = 6


def main(path: str, cases: str, *expressions: str) -> None:
    config = sg.resolve_cluster()
    index = config.task_index if config else 0
    for number, expression in enumerate(expressions):
        strategy = None if expression == "plain" else eval(expression)  # noqa: S307
        found = {}
        for case in cases.split(","):
            results = (
                plain(case, STEPS)
                if strategy is None
                else trained(strategy, case, STEPS, with_flax_optimizer=case == "dense")
            )
            found.update({f"{case}/{name}": value for name, value in results.items()})
        np.savez(f"{path}-{number}-{index}.npz", allow_pickle=False, **found)
        if strategy is not None:
            strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
