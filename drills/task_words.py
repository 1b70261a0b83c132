"""What tasks of drills say to those who watch them, and how they wait for a sign."""

import json
import time
from pathlib import Path
from typing import Any

SECONDS = 90.0
"""Within which a sign must come, on a machine that is busy with other things too."""


def tell(**words: Any) -> None:
    """A line for `Task.results`."""
    print("told:", json.dumps(words), flush=True)


def wait_for(path: Path) -> None:
    """Stand still until there is a file."""
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.005)
