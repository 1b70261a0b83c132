"""Kill parameter servers, workers and the chief at random moments: training finishes, and its counts are right."""

import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random
from threading import Timer

from drills.counting_job import RULES, TASKS, CountingJob
from drills.nursery import Nursery
from drills.processes import NotInTime
from drills.table import Outcome

CHIEF = "worker:0"
RESTARTS = 3
"""How often a task may be started again."""
FURTHER = 50
"""Steps that are trained after the last kill."""
START, FIRST_UPDATE, LAST_STEP = "its start", "the first update", "the last step"
"""Phases of a job's life."""
TRAINED = 1.0
"""Seconds from the first update until the last step is set, for a job that is killed at any moment."""
CHECKED = "training ends well; every element has had as many updates as the step says"


def drill(random: Random, rule: str, kills: int, nursery: Nursery | None = None) -> Outcome:
    """Run one round: kill a number of tasks while they train, each at a random moment."""
    victims = random.choices([*TASKS, CHIEF], k=kills)  # the chief as often as servers or other workers
    moments = [random.uniform(0.0, 1.5) for _ in range(kills)]
    is_early = random.random() < 0.2

    def run(job: CountingJob) -> None:
        if not is_early:
            job.wait_for(1)
        for victim, moment in zip(victims, moments, strict=True):
            time.sleep(moment)  # the moment is what is random here, not something to wait for
            job.kill_when_there(victim)
        job.set_target(FURTHER)

    return _attempt("kill -9", rule, victims, run, nursery)


def drill_at_any_moment(random: Random, rule: str) -> tuple[Outcome, int]:
    """Run one round: kill tasks at any moment of the job's life. Return the outcome, and the number of tasks that were killed."""
    plans = [(random.sample(TASKS, len(TASKS)), *_moment(random)) for _ in range(random.randint(1, RESTARTS))]
    has_table = random.random() < 0.5
    killed: list[str] = []

    def kill(job: CountingJob, victims: list[str], phase: str, moment: float) -> None:
        if (victim := job.kill_when_there(*victims)) is not None:
            killed.append(f"{victim}, {moment:.3f} s after {phase}")

    def run(job: CountingJob) -> None:
        timers = []
        for begun in _life(job):
            for victims, phase, moment in plans:
                if begun == phase:
                    timers.append(Timer(moment, kill, (job, victims, phase, moment)))
                    timers[-1].start()
        for timer in timers:
            timer.join()

    name = f"kill -9 {len(plans)} times at any moment" + (", with a table" if has_table else "")
    outcome = _attempt(name, rule, killed, run, has_table=has_table)
    return outcome, len(killed)


def _moment(random: Random) -> tuple[str, float]:
    """Return a random phase of a job's life, and seconds after its beginning."""
    return random.choice(
        [
            (START, random.uniform(0.0, 1.0)),
            (START, random.uniform(0.0, 4.0)),
            (FIRST_UPDATE, random.uniform(0.0, TRAINED)),
            (LAST_STEP, random.uniform(0.0, 1.0)),
        ]
    )


def drills(rounds: int, seed: int, kills: int = RESTARTS, nursery: Nursery | None = None) -> list[Outcome]:
    """Return the outcomes of this number of rounds, over all rules in turn."""
    random = Random(seed)
    rules = cycle(RULES)
    return [drill(random, next(rules), kills, nursery) for _ in range(rounds)]


def drills_at_any_moment(rounds: int, seed: int) -> Iterator[Outcome]:
    """Yield the outcome of each job, over all rules in turn, until this number of tasks was killed, or a few more."""
    random = Random(seed)
    rules = cycle(RULES)
    left = rounds
    while left > 0:
        outcome, kills = drill_at_any_moment(random, next(rules))
        # A job that fails before anything is killed counts too: it must not be tried for ever.
        left -= kills or int(outcome.problem is not None)
        yield outcome


def _life(job: CountingJob) -> Iterator[str]:
    """Let a job train for a while and set its last step; yield the phases as they begin."""
    yield START
    job.wait_for(1)
    yield FIRST_UPDATE
    time.sleep(TRAINED)  # nothing to wait for: this is how long it trains
    job.wait_for(job.set_target(FURTHER))
    yield LAST_STEP


def _attempt(
    name: str,
    rule: str,
    killed: list[str],
    run: Callable[[CountingJob], None],
    nursery: Nursery | None = None,
    has_table: bool = False,
) -> Outcome:
    """Run one round, in which `run` kills the tasks that are then in `killed`, and sets the last step."""
    began = time.monotonic()
    with CountingJob(rule, RESTARTS, nursery, has_table) as job:
        try:
            run(job)
            problem = job.problem()
        except (NotInTime, subprocess.TimeoutExpired) as error:
            problem = str(error)
        told = problem and f"{problem}; killed: {', '.join(killed)}; its log ends: {job.log[-3000:]}"
    return Outcome(f"parameter servers, {rule}: {name}", time.monotonic() - began, told, CHECKED)
