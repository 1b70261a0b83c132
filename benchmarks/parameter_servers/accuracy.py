"""Accuracy on Fashion-MNIST after the same global steps, on parameter servers of Stratagem and of TensorFlow."""

import sys

from benchmarks.parameter_servers.running import Job, RunningJob
from benchmarks.racing.conversation import Absent
from benchmarks.racing.processes import Failed
from benchmarks.racing.work import MODELS, SMALL

STEPS = 3000
POINTS = 1.0
"""Of accuracy in a hundred, within which the two are to be."""
WORKERS = 2
CONTENDERS = (
    Job("Async()", "stratagem_servers", "fashion", WORKERS),
    Job("TensorFlow", "tensorflow_servers", "fashion", WORKERS, launch="with a server"),
)


def compare_accuracy() -> dict[str, float | str]:
    """Return the accuracy of each contender, in percent, or why there is none."""
    found: dict[str, float | str] = {}
    for job in CONTENDERS:
        print(f"accuracy after {STEPS} global steps: {job.name}", file=sys.stderr)
        try:
            with RunningJob(job, job.task_json(MODELS[SMALL], None), None) as running:
                running.wait_until_ready()
                step, accuracy = running.reach(STEPS)
                found[job.name] = 100 * accuracy if step == STEPS else f"failed: it is at global step {step}"
        except Absent as reason:
            found[job.name] = f"absent: {reason}"
        except Failed as error:
            found[job.name] = f"failed: {error}"
    return found


def has_failed(found: dict[str, float | str]) -> bool:
    """Return whether a contender failed; an absent one did not."""
    return any(isinstance(each, str) and each.startswith("failed") for each in found.values())


def show_accuracy(found: dict[str, float | str]) -> None:
    """Print the accuracies."""
    print(f"Fashion-MNIST, {SMALL}, async, {WORKERS} workers, {STEPS} global steps:")
    for name, accuracy in found.items():
        print(f"  {name}: {accuracy if isinstance(accuracy, str) else f'{accuracy:.2f} %'}")
    ours, theirs = (found[job.name] for job in CONTENDERS)
    if isinstance(ours, float) and isinstance(theirs, float):
        difference = ours - theirs
        verdict = "reached" if abs(difference) <= POINTS else "missed"
        print(f"  difference: {difference:+.2f} points (target: within {POINTS:g}: {verdict})")
