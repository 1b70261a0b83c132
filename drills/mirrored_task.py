"""A worker of a synchronous group that counts its updates, saves now and then, and resumes from the last checkpoint.

python drills/mirrored_task.py COMMUNICATION DIRECTORY. It trains to the step in DIRECTORY/target, writes its progress to
DIRECTORY/progress-INDEX, and the state that it fetched at the end to DIRECTORY/fetched-INDEX.
"""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import stratagem as sg
from drills.counting_task import BATCH, initial, loss_fn, optimizer, summary, write

PATIENCE = 10.0
"""Seconds after which a worker that does not answer is lost."""
EVERY = 5
"""Steps between two checkpoints."""


def main(communication: Any, directory: str) -> None:
    """Train until the last step is set and reached."""
    place = Path(directory)
    strategy = sg.MultiWorkerMirroredStrategy(communication=communication, timeout=PATIENCE)
    config = sg.resolve_cluster()
    index = config.task_index if config is not None else 0
    state = strategy.init(initial(), optimizer())
    step = strategy.train_step(loss_fn)
    checkpoints = sg.Checkpointer(place / "checkpoints")
    state = checkpoints.restore(like=state) or state
    print("begins at", int(state.step), flush=True)
    target = place / "target"
    for batch in strategy.distribute_from_function(lambda _: itertools.repeat(BATCH)):
        # What the chief reads holds for all, so that none stops a step before the others.
        own = int(target.read_text()) if strategy.is_chief and target.exists() else 0
        last = int(strategy.reduce("sum", own))
        if 0 < last <= int(state.step):
            break
        state, _ = step(state, batch)
        write(place / f"progress-{index}", str(int(state.step)))
        if int(state.step) % EVERY == 0:
            checkpoints.save(state)
    checkpoints.close()
    write(place / f"fetched-{index}", json.dumps(summary(strategy.fetch(state))))
    strategy.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
