"""Messages from the tasks of drills to the processes that watch them, and how tasks wait for a sign."""

import json
import time
from pathlib import Path
from typing import Any

SECONDS = 90.0
"""Within which a sign must come, on a machine that is busy with other things too."""


def tell(**words: Any) -> None:
    """Print a line for `Task.results`."""
    print("told:", json.dumps(words), flush=True)


def wait_for(path: Path) -> None:
    """Wait until a file exists."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.005)
