"""Trains every row of a table that is larger than the memory that this worker may use; run as a script.

python drills/large_table_task.py ROWS GROUP, where GROUP is the directory of a control group, or empty.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__" and sys.argv[2]:
    # Before anything is imported: what a process has already is not counted.
    (Path(sys.argv[2]) / "cgroup.procs").write_text(str(os.getpid()))

import numpy as np
import optax

import stratagem as sg
from drills.remote_listener import peak_bytes

DIM, IDS = 64, 16_384
"""Numbers of a row; ids of a batch."""
APART = 7_919
"""Ids are not one after the other."""


def main(rows: int) -> None:
    strategy = sg.ParameterServerStrategy()
    table = sg.Table("large", DIM)
    state = strategy.init({"w": np.zeros(DIM, np.float32)}, optax.adagrad(0.1), tables=[table])

    def loss(params, batch, rows):  # type: ignore[no-untyped-def]
        return ((rows["large"](batch) @ params["w"] - 1.0) ** 2).mean()

    step = strategy.train_step(loss)
    batches = (
        APART * np.arange(start, min(start + IDS, rows), dtype=np.int64) for start in range(0, rows, IDS)
    )
    for batch in strategy.distribute(batches):
        state, _ = step(state, batch)
    print(f"rows: {len(strategy.table(state, 'large'))}, peak: {peak_bytes(os.getpid())}", flush=True)
    strategy.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
