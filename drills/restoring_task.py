"""Restores the newest readable checkpoint, then saves the next one and restores that.

python drills/restoring_task.py DIRECTORY
"""

import sys
from typing import Any

import jax
import numpy as np

from drills.checkpoint_saver import state_of
from drills.task_messages import tell
from stratagem import Checkpointer


def numbers(restored: Any) -> list[float]:
    """Return all distinct numbers in a state."""
    return sorted({float(n) for leaf in jax.tree.leaves(restored) for n in np.unique(np.asarray(leaf))})


def main(directory: str) -> None:
    """Restore, save, restore."""
    checkpoints = Checkpointer(directory)
    restored = checkpoints.restore(like=state_of(0))
    tell(found=numbers(restored), data=checkpoints.data)
    following = checkpoints.data + 1
    checkpoints.save(state_of(following), data=following)
    checkpoints.close()
    again = Checkpointer(directory)
    tell(found=numbers(again.restore(like=state_of(0))), data=again.data)


if __name__ == "__main__":
    main(*sys.argv[1:])
