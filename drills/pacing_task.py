"""A worker that trains to a global step; the slow worker takes ten times as long for each step.

python drills/pacing_task.py RULE DIRECTORY LAST SLOW, where SLOW is the slow worker's index. It begins when
DIRECTORY/all exists, and ends when DIRECTORY/seen does.
"""

import sys
import time
from pathlib import Path

import stratagem as sg
from drills.counting_task import BATCH, initial, loss_fn, optimizer
from drills.task_messages import tell, wait_for

TIMES = 10


def main(rule: str, directory: str, last: str, slow: str) -> None:
    """Train to the last step at the pace of this worker."""
    place = Path(directory)
    strategy = sg.ParameterServerStrategy(update=eval(rule))  # noqa: S307
    is_slow = strategy.cluster is not None and int(slow) == _index()
    state = strategy.init(initial(), optimizer())
    step = strategy.train_step(loss_fn)
    state, metrics = step(state, BATCH)
    pushes = 1
    tell(first=metrics["global_step"])
    wait_for(place / "all")
    while int(state.step) < int(last):
        began = time.monotonic()
        state, metrics = step(state, BATCH)
        pushes += 1
        if is_slow:
            time.sleep((TIMES - 1) * (time.monotonic() - began))
    tell(pushes=pushes)
    wait_for(place / "seen")


def _index() -> int:
    config = sg.resolve_cluster()
    if config is None or config.task_index is None:
        raise SystemExit("this is no task of a cluster: set TF_CONFIG")
    return config.task_index


if __name__ == "__main__":
    main(*sys.argv[1:])
