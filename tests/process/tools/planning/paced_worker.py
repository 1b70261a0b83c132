"""A worker whose step is a pause and a small computation, so that a few of them do not fight over two cores.

python paced_worker.py RULE PAUSE PUSHES BYTES…: for each size of model, prints how long each step took.
"""

import json
import sys
import time

import numpy as np
import optax

import stratagem as sg
from stratagem.tools.planning.measuring_job import layers, loss_fn

ROWS = 4
WARM_UP = 4


def main(rule: str, pause: float, pushes: int, sizes: list[int]) -> None:
    if rule == "all-reduce":
        strategy: sg.Strategy = sg.MultiWorkerMirroredStrategy()
    else:
        strategy = sg.ParameterServerStrategy(update=sg.Async() if rule == "async" else sg.Sync())
    batch = np.full((ROWS, 1024), 1e-3, np.float32)
    for size in sizes:
        state = strategy.init(layers(size), optax.adam(1e-3))
        step = strategy.train_step(loss_fn)
        ends = []
        for _ in range(WARM_UP + pushes):
            time.sleep(pause)
            state, _ = step(state, batch)
            ends.append(time.monotonic())
        cycles = np.diff(ends)[WARM_UP - 1 :].tolist()
        print("told:", json.dumps({"bytes": size, "cycles": cycles}), flush=True)
    strategy.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), [int(size) for size in sys.argv[4:]])
