"""Cut and heal links between hosts during training with parameter servers: it ends well, and every push counts once.

Each task is on a host of its own, a network namespace. The two ends of a cut link do not learn that it is cut: packets get
lost, as in a distant network. A short cut is a pause for TCP; after a long one tasks reconnect.
"""

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

from drills import counting_files
from drills.hosts import Host, NotHere, simulated_hosts
from drills.nursery import Job, Nursery, use_nursery
from drills.processes import until
from drills.rounds import attempt
from drills.table import Outcome
from stratagem.tools.launch.tasks import TaskName

RULES = {"async": "sg.Async()", "sync": "sg.Sync()", "bounded staleness": "sg.BoundedStaleness(4)"}
SERVERS, WORKERS = 2, 2
FURTHER = 30
"""Steps that are trained after the last cut."""
SHORT, LONG = (0.1, 2.5), (11.0, 14.0)
"""Seconds that a cut lasts, from least to most: within TCP's patience, and beyond it."""
SECONDS = 90.0
CHECKED = "all tasks end with 0; pushes = updates = global step, for every element"


def drill(
    nursery: Nursery,
    hosts: Sequence[Host],
    rule: str,
    victims: Sequence[tuple[str, int, float]],
    pause: float = 0.0,
    servers: int = SERVERS,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run one training, and cut links one after the other.

    Args:
        nursery: Forks the tasks.
        hosts: One for each server, then one for each worker.
        rule: The update rule.
        victims: Job, index and seconds of each cut.
        pause: Seconds before each cut.
        servers: Number of tasks that are servers; the others are workers.
        environ: Further environment variables of all tasks.
    """
    workers = len(hosts) - servers
    with (
        tempfile.TemporaryDirectory() as name,
        nursery.job(Path(name), servers, workers, hosts, environ) as job,
    ):
        place = Path(name)
        tasks = [job.serve(index) for index in range(servers)]
        tasks += [job.start("worker", index, counting_files.TASK, rule, place) for index in range(workers)]

        def is_under_way(step: int) -> bool:
            return counting_files.reached(place) >= step or any(task.code is not None for task in tasks)

        until("the first updates", lambda: is_under_way(5), SECONDS)
        for victim in victims:
            time.sleep(pause)  # the moment is what is random here, not something to wait for
            _cut(job, *victim)
            reached = counting_files.reached(place)
            until(f"updates after the cut of {victim}", partial(is_under_way, reached + 5), SECONDS)
        counting_files.set_target(place, counting_files.reached(place) + FURTHER)
        for task in tasks:
            task.ends_well()
        counting_files.check(place, workers, in_step=rule == RULES["sync"])


def _cut(job: Job, name: str, index: int, seconds: float) -> None:
    host = job.hosts[TaskName(name, index)]
    host.cut()
    try:
        time.sleep(seconds)  # as long as the cut lasts
    finally:
        host.heal()


def drills(rounds: int, seed: int, nursery: Nursery | None = None) -> list[Outcome]:
    """Return the outcomes of this number of rounds, over all rules in turn; every fifth round has a long cut."""
    random = Random(seed)
    outcomes = []
    rules = list(RULES)
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(simulated_hosts(SERVERS + WORKERS))
        except NotHere as error:
            return [
                Outcome(f"cut: a link, {rule}", 0.0, checked=CHECKED, not_run=str(error)) for rule in rules
            ]
        forks = stack.enter_context(use_nursery(nursery))
        for number in range(rounds):
            rule = rules[number % len(rules)]
            lasts = LONG if number % 5 == 4 else SHORT
            victims = [
                (*random.choice([("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]), random.uniform(*lasts))
                for _ in range(1 if lasts is LONG else random.randint(1, 3))
            ]
            name = f"cut: a link {'for long' if lasts is LONG else 'briefly'}, {rule}"
            run = partial(drill, forks, hosts, RULES[rule], victims, random.uniform(0.0, 0.5))
            outcomes.append(attempt(name, CHECKED, run))
    return outcomes
