"""Flip and cut off bytes of files on disk: an older checkpoint or snapshot is used, and a damaged record is named."""

import re
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from drills import counting_files
from drills.checkpoint_saver import state_of
from drills.nursery import Nursery, use_nursery
from drills.processes import until
from drills.rounds import attempt
from drills.table import Outcome
from stratagem import Checkpointer, environment
from stratagem.data import read_tfrecord, write_tfrecord
from stratagem.errors import DataError
from stratagem.keep import Snapshots

RESTORING = Path(__file__).with_name("restoring_task.py")
RECORDS = 50
SECONDS = 90.0
FURTHER = 20


def flip(path: Path, position: int, bit: int) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def truncate(path: Path, length: int) -> None:
    """Cut off the rest of a file."""
    path.write_bytes(path.read_bytes()[:length])


def damage(path: Path, random: Random) -> str:
    """Flip a bit or truncate, anywhere, and return a description."""
    size = path.stat().st_size
    if random.random() < 0.5:
        position, bit = random.randrange(size), random.randrange(8)
        flip(path, position, bit)
        return f"bit {bit} of byte {position} of {size} in {path.name} was flipped"
    length = random.choice([0, random.randrange(size)])
    truncate(path, length)
    return f"{path.name} was cut off at byte {length} of {size}"


def damage_cut(cuts: Snapshots, step: int, random: Random) -> str:
    """Damage any file of a finished snapshot."""
    return damage(random.choice(sorted(path for path in cuts.path(step).iterdir() if path.is_file())), random)


def is_told(log: str, skipped: int, used: int) -> bool:
    """Return whether a log says which snapshot was skipped, why, and which was used instead."""
    words = rf"the snapshot of step {skipped} is skipped: .+\(the snapshot of step {used} is used instead\)"
    return re.search(words, log, re.DOTALL) is not None


def checkpoint(nursery: Nursery, place: Path, random: Random) -> None:
    """Damage the newest one or two of three checkpoints."""
    saved = Checkpointer(place / "checkpoints")
    steps = [1, 2, 3]
    for step in steps:
        saved.save(state_of(step), data=step)
    saved.close()
    bad = random.choice([steps[2:], steps[1:]])
    cuts = Snapshots(place / "checkpoints")
    done = [damage_cut(cuts, step, random) for step in bad]
    used = bad[0] - 1
    with nursery.job(place, 0, 1) as job:
        task = job.start("alone", 0, RESTORING, place / "checkpoints")
        assert task.ends() == 0, f"it did not restore; {done}"
    first, second = task.results()
    assert first == {"found": [used], "data": used}, f"restored {first}; {done}"
    assert second == {"found": [used + 1], "data": used + 1}, f"after it went on: {second}; {done}"
    for step in bad:
        assert is_told(task.text, step, used), f"no warning; {done}: {task.text}"


def snapshot(nursery: Nursery, place: Path, random: Random) -> None:
    """Lose a server, and damage the newest snapshot from which the servers would recover."""
    cuts = Snapshots(place / "cuts" / "model-0")
    victim = random.randrange(2)
    environ = {environment.SNAPSHOT_DIR: str(cuts.root.parent)}
    with nursery.job(place, 2, 1, environ=environ) as job:
        servers = [job.serve(index) for index in range(2)]
        worker = job.start("worker", 0, counting_files.TASK, "sg.Async()", place)
        until("two cuts of steps after the first", lambda: len(set(cuts.steps()) - {0}) == 2, SECONDS)
        worker.kill(signal.SIGSTOP)  # without pushes there are no new cuts
        servers[victim].kill()
        *_, older, newest = cuts.steps()
        done = damage_cut(cuts, newest, random)
        servers[victim] = job.serve(victim)
        worker.kill(signal.SIGCONT)
        worker.says("is back, at step")
        assert f"is back, at step {older}\n" in worker.text, f"not at step {older}; {done}"
        counting_files.set_target(place, counting_files.reached(place) + FURTHER)
        for task in (worker, *servers):
            task.ends_well()
        leader = servers[0].text
        assert is_told(leader, newest, older), f"no warning; {done}"
        # The one who led has seen how far they were; one that was started again is told by the worker.
        words = (
            rf"goes on from the snapshot of step {older}: (\d+) updates lost \(it had come to step (\d+)\)"
        )
        cost, reached = map(int, re.findall(words, leader)[0])
        assert reached - older == cost > 0, f"from {reached} to {older} is not {cost}"
    assert (found := counting_files.problem(place, 1)) is None, found


def record(nursery: Nursery, place: Path, random: Random) -> None:
    """Damage one record, or truncate the file within it: the records before it are read, and its position is named."""
    del nursery  # nothing to start: whoever reads is told by the reader itself
    path = place / "examples.tfrecord"
    records = [random.randbytes(random.randint(0, 300)) for _ in range(RECORDS)]
    write_tfrecord(path, records)
    places = [0]
    for each in records:
        places.append(places[-1] + 16 + len(each))  # a length, its checksum, the record, its checksum
    number = random.randrange(RECORDS)
    position = random.randrange(places[number] + 1, places[number + 1])
    is_cut_off = random.random() < 0.5
    if is_cut_off:
        truncate(path, position)
    else:
        flip(path, position, random.randrange(8))
    done = f"byte {position} of record {number}, at byte {places[number]}, {'cut off' if is_cut_off else 'flipped'}"
    found = []
    try:
        for each in read_tfrecord(path):
            found.append(each)
    except DataError as error:
        assert str(path) in str(error), f"the file is not named: {error}"
        assert f"record at byte {places[number]}" in str(error), f"{done}, and it is said: {error}"
    else:
        raise AssertionError(f"nobody noticed: {done}")
    assert found == records[:number], f"{done}, and {len(found)} records were read"
    kept = list(read_tfrecord(path, on_error="skip"))
    assert kept in (records[:number], records[:number] + records[number + 1 :]), (
        f"{done}, skipped with others"
    )


Round = Callable[[Nursery, Path, Random], None]
KINDS: list[tuple[str, str, Round]] = [
    (
        "corrupt: a checkpoint",
        "the newest whole one restores, with a warning; the next one is saved",
        checkpoint,
    ),
    (
        "corrupt: a snapshot",
        "a lost server comes back from the one before, with a warning; counts right",
        snapshot,
    ),
    ("corrupt: a TFRecord", "the file and the record are named; the other records are read", record),
]


def drills(rounds: int, seed: int, nursery: Nursery | None = None) -> list[Outcome]:
    """Return the outcomes of this number of rounds of each kind."""
    random = Random(seed)
    outcomes = []
    with use_nursery(nursery) as forks:
        for _ in range(rounds):
            for name, checked, run in KINDS:
                with tempfile.TemporaryDirectory() as place:
                    outcomes.append(attempt(name, checked, partial(run, forks, Path(place), random)))
    return outcomes
