"""The files that a training of `counting_task.py` leaves in its directory, for the processes that watch it."""

import json
from pathlib import Path
from typing import Any

from drills.counting_task import is_even, write

TASK = Path(__file__).with_name("counting_task.py")


def reached(directory: Path) -> int:
    """Return the newest global step that a worker has recorded."""
    return max((int(path.read_text()) for path in directory.glob("progress-?")), default=0)


def set_target(directory: Path, step: int) -> None:
    """Let the workers stop at a global step."""
    write(directory / "target", str(step))


def fetched(directory: Path) -> list[dict[str, Any]]:
    """Return the state that each worker fetched at the end."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("fetched-?"))]


def problem(directory: Path, workers: int) -> str | None:
    """Return what is wrong at the end, if anything: a worker that did not finish, or updates that differ from the step."""
    target = int((directory / "target").read_text())
    found = fetched(directory)
    if len(found) != workers:
        return f"{len(found)} of {workers} workers came to the end"
    for each in found:
        if not is_even(each):
            return f"the updates are not those of the step: {each}"
        if each["step"] < target:
            return f"step {each['step']} was fetched, and the last one is {target}"
    return None


def check(directory: Path, workers: int, in_step: bool) -> None:
    """Assert that a training ended well, and that every push was applied exactly once.

    Args:
        directory: The training's directory.
        workers: Number of workers, none of which was restarted.
        in_step: Whether an update is made of one push of each worker, rather than of one push.
    """
    found = problem(directory, workers)
    assert found is None, found
    ends = fetched(directory)
    pushes, step = [each["pushes"] for each in ends], max(each["step"] for each in ends)
    if in_step:
        assert pushes == [step] * workers, f"{pushes} pushes made step {step}"
    else:
        assert sum(pushes) == step, f"{pushes} pushes made step {step}"
