"""Kill a worker of a synchronous group: the others name it, and after a restart training resumes from the last checkpoint."""

import tempfile
import time
from functools import partial
from pathlib import Path
from random import Random

from drills import counting_files
from drills.mirrored_task import PATIENCE
from drills.nursery import Nursery, use_nursery
from drills.processes import until
from drills.rounds import attempt
from drills.table import Outcome
from stratagem import Checkpointer, environment

TASK = Path(__file__).with_name("mirrored_task.py")
WAYS = ["shm", "ring"]
WORKERS = 3
FURTHER = 20
"""Steps that are trained after the restart."""
SLACK = 10.0
"""What a busy machine may add to the patience with a lost worker."""
CHECKED = f"the others name it within {PATIENCE + SLACK:g} s; a restart goes on from the last checkpoint, none lost or twice"


def drill(nursery: Nursery, place: Path, way: str, victim: int, moment: float) -> None:
    """Kill one worker at a moment after the first checkpoint, then restart all workers."""
    saved = Checkpointer(place / "checkpoints")
    with nursery.job(place, 0, WORKERS) as job:
        workers = [job.start("worker", index, TASK, way, place) for index in range(WORKERS)]
        until("a checkpoint", lambda: saved.latest() or any(task.code is not None for task in workers), 90)
        time.sleep(moment)  # the moment is what is random here, not something to wait for
        workers[victim].kill()
        for worker in workers:
            if worker is not workers[victim]:
                code = worker.ends(PATIENCE + SLACK)
                assert code == 1, f"{worker.name} ended with {code}"
                words = f"stratagem.errors.WorkerLost: /job:worker/task:{victim} is lost"
                assert words in worker.text, f"{worker.name} does not say whom it lost"
        latest, reached = saved.latest(), counting_files.reached(place)
        assert latest is not None and latest <= reached, f"{latest} is saved, and {reached} was reached"
        counting_files.set_target(place, reached + FURTHER)
        again = {environment.GENERATION: "1"}
        workers = [job.start("worker", index, TASK, way, place, **again) for index in range(WORKERS)]
        for worker in workers:
            worker.ends_well()
            assert f"begins at {latest}\n" in worker.text, f"{worker.name} did not begin at {latest}"
    assert (found := counting_files.problem(place, WORKERS)) is None, found
    steps = {each["step"] for each in counting_files.fetched(place)}
    assert steps == {reached + FURTHER}, f"they ended at {steps}, and the last step is {reached + FURTHER}"


def drills(rounds: int, seed: int, nursery: Nursery | None = None) -> list[Outcome]:
    """Return the outcomes of this number of rounds, over the ways of communication in turn."""
    random = Random(seed)
    outcomes = []
    with use_nursery(nursery) as forks:
        for number in range(rounds):
            way = WAYS[number % len(WAYS)]
            with tempfile.TemporaryDirectory() as place:
                run = partial(
                    drill, forks, Path(place), way, random.randrange(WORKERS), random.uniform(0.0, 1.0)
                )
                outcomes.append(attempt(f"multi-worker, {way}: kill -9 a worker", CHECKED, run))
    return outcomes
