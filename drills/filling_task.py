"""A worker that saves checkpoints while its disk is full, or its files are limited, and afterwards; it reports each result.

python drills/filling_task.py DIRECTORY KIND ROOM GOOD BAD: GOOD checkpoints, then BAD more with ROOM bytes left, or
files no larger than ROOM, then one when that is over. KIND is `disk` or `limit`.
"""

import os
import sys
from pathlib import Path

import stratagem as sg
from drills import disk
from drills.counting_task import BATCH, initial, loss_fn, optimizer, summary
from drills.task_messages import tell

ROWS = 20_000
"""A checkpoint is of 1.6 MB then."""


def main(directory: str, kind: str, room: str, good: str, bad: str) -> None:
    """Train and save, and continue whatever the result."""
    place = Path(directory)
    strategy = sg.OneDeviceStrategy()
    state = strategy.init(initial(rows=ROWS), optimizer())
    step = strategy.train_step(loss_fn)
    checkpoints = sg.Checkpointer(place / "checkpoints", keep=2)
    said: list[str | None] = []

    def train_and_save() -> None:
        nonlocal state
        state, _ = step(state, BATCH)
        try:
            checkpoints.save(state)
            checkpoints.wait()
            said.append(None)
        except sg.StratagemError as error:
            said.append(f"{type(error).__name__}: {error}")

    for _ in range(int(good)):
        train_and_save()
    if kind == "disk":
        disk.fill(place, int(room))
    else:
        disk.limit([os.getpid()], int(room))
    for _ in range(int(bad)):
        train_and_save()
    restored = sg.Checkpointer(place / "checkpoints").restore(
        like=strategy.init(initial(rows=ROWS), optimizer())
    )
    found = None if restored is None else summary(strategy.fetch(restored))
    if kind == "disk":
        disk.empty(place)
    else:
        disk.limit([os.getpid()], None)
    train_and_save()
    tell(
        said=said,
        restored=found,
        trained=summary(strategy.fetch(state)),
        latest=checkpoints.latest(),
        left=sorted(path.name for path in (place / "checkpoints").rglob("*.partial")),
    )
    checkpoints.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
