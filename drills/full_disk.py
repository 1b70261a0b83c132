"""Fill the disk, or limit the size of files, while checkpoints and snapshots are written.

Training continues, a write that fails is reported, and the last one that succeeded can be restored.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from drills import counting_files, disk
from drills.counting_task import is_even
from drills.filling_task import ROWS
from drills.hosts import NotHere
from drills.nursery import Job, Nursery, Task
from drills.processes import until
from drills.rounds import attempt
from drills.table import Outcome
from stratagem import environment
from stratagem.keep import Snapshots

TASK = Path(__file__).with_name("filling_task.py")
DISK = 12 << 20
"""Bytes of the small disk: room for a few checkpoints, or cuts."""
LEAST, MOST = 100 << 10, 300 << 10
"""Bytes that are left, or allowed to a file: less than any shard here has."""
WORDS = {"disk": "No space left on device; free some space", "limit": "File too large; raise the limit"}
KINDS = {"disk": "a full disk", "limit": "a limit on files"}
SECONDS = 90.0
FURTHER = 20


def saving(nursery: Nursery, place: Path, place_on_disk: Path, kind: str, random: Random) -> None:
    """Save checkpoints in one process: those that cannot be written say why, the others can be restored."""
    good, bad, room = random.randint(1, 3), random.randint(1, 3), random.randint(LEAST, MOST)
    with nursery.job(place, 0, 1) as job:
        task = job.start("alone", 0, TASK, place_on_disk, kind, room, good, bad)
        task.ends_well()
    told = task.results()[0]
    said = told["said"]
    assert said[:good] == [None] * good, f"on a good disk: {said[:good]}"
    for words in said[good:-1]:
        assert words is not None, "it was written where there is no room for it"
        assert words.startswith("KeepError: ") and WORDS[kind] in words, f"it says: {words}"
    assert said[-1] is None, f"once there was room again: {said[-1]}"
    last = good + bad + 1
    assert told["restored"]["step"] == good and is_even(told["restored"]), f"restored: {told['restored']}"
    assert told["trained"]["step"] == told["latest"] == last and is_even(told["trained"]), f"{told}"
    assert told["left"] == [], f"left on the disk: {told['left']}"


def cutting(nursery: Nursery, place: Path, place_on_disk: Path, kind: str, random: Random) -> None:
    """Write snapshots of servers: training continues without new ones, and a lost server recovers from the last good one."""
    cuts = Snapshots(disk.seen_by(nursery.pid, place_on_disk) / "cuts" / "model-0")
    environ = {environment.SNAPSHOT_DIR: str(place_on_disk / "cuts")}
    room, victim = random.randint(LEAST, MOST), random.choice([None, 0, 1])
    with nursery.job(place, 2, 2, environ=environ) as job:
        servers = [job.serve(index) for index in range(2)]
        workers = [
            job.start("worker", index, counting_files.TASK, "sg.Async()", place, ROWS) for index in range(2)
        ]

        def ended() -> bool:
            return any(task.code is not None for task in (*servers, *workers))

        until("a cut after the first", lambda: len(cuts.steps()) > 1 or ended(), SECONDS)
        if kind == "limit":
            disk.limit([server.pid for server in servers], room)

        def is_told() -> bool:
            if (
                kind == "disk"
            ):  # a cut that had its room before is finished, and an older one makes room for the next
                disk.fill(disk.seen_by(nursery.pid, place_on_disk), room)
            return WORDS[kind] in servers[0].text or ended()

        until("the log to tell of it", is_told, SECONDS)
        assert "there is no snapshot of step" in servers[0].text, "the log does not tell of it"
        if victim is not None:
            _lose(job, servers, workers, victim, cuts)
        if kind == "disk":
            disk.empty(disk.seen_by(nursery.pid, place_on_disk))
        else:
            disk.limit([server.pid for server in servers], None)
        latest = cuts.latest() or 0
        until("a cut once there is room", lambda: (cuts.latest() or 0) > latest or ended(), SECONDS)
        counting_files.set_target(place, counting_files.reached(place) + FURTHER)
        for task in (*workers, *servers):
            task.ends_well()
    assert (found := counting_files.problem(place, 2)) is None, found


def _lose(job: Job, servers: list[Task], workers: list[Task], victim: int, cuts: Snapshots) -> None:
    latest = cuts.latest()
    servers[victim].kill()
    servers[victim] = job.serve(victim)
    for worker in workers:
        worker.says("is back, at step")
    # Who is back first may train before the other is.
    steps = [int(re.findall(r"is back, at step (\d+)", worker.text)[-1]) for worker in workers]
    assert min(steps) == latest, f"back at steps {steps}, and the last cut is of step {latest}"


Round = Callable[[Nursery, Path, Path, str, Random], None]
DRILLS: list[tuple[str, str, Round]] = [
    (
        "checkpoints",
        "KeepError says why; training goes on; the last good one restores, later ones are written",
        saving,
    ),
    (
        "snapshots",
        "a warning says why; training goes on; a lost server comes back from the last good one",
        cutting,
    ),
]


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcomes of this number of rounds, over checkpoints and snapshots, full disks and limits in turn."""
    random = Random(seed)
    outcomes = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        root = Path(name)
        small = root / "small"
        small.mkdir()
        missing = None
        try:
            before = disk.small_disk(small, DISK)
        except NotHere as error:
            before, missing = (), str(error)
        nursery = stack.enter_context(Nursery(before=before))
        for number in range(rounds):
            what, checked, run = DRILLS[number % len(DRILLS)]
            kind = list(KINDS)[number // len(DRILLS) % len(KINDS)]
            drill = f"fill: {KINDS[kind]}, {what}"
            if kind == "disk" and missing is not None:
                outcomes.append(Outcome(drill, 0.0, checked=checked, not_run=missing))
                continue
            place = root / f"round-{number}"
            place.mkdir()
            outcomes.append(attempt(drill, checked, partial(run, nursery, place, small, kind, random)))
            for left in disk.seen_by(nursery.pid, small).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return outcomes
