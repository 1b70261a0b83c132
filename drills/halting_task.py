"""A worker that makes a few pushes; one of the workers halts before one of its own until it is released.

python drills/halting_task.py RULE DIRECTORY PUSHES INDEX DONE: worker INDEX halts after DONE pushes, until
DIRECTORY/seen exists.
"""

import sys
from pathlib import Path

import stratagem as sg
from drills.counting_task import BATCH, initial, loss_fn, optimizer, summary
from drills.task_messages import tell, wait_for


def main(rule: str, directory: str, pushes: str, index: str, done: str) -> None:
    """Push this number of times."""
    strategy = sg.ParameterServerStrategy(update=eval(rule))  # noqa: S307
    config = sg.resolve_cluster()
    halts = config is not None and config.task_index == int(index)
    state = strategy.init(initial(), optimizer())
    step = strategy.train_step(loss_fn)
    for number in range(int(pushes)):
        if halts and number == int(done):
            wait_for(Path(directory) / "seen")
        state, _ = step(state, BATCH)
        print("pushed", number + 1, flush=True)
    tell(fetched=summary(strategy.fetch(state)))


if __name__ == "__main__":
    main(*sys.argv[1:])
