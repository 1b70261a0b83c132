"""Kill the launcher, its keepers and its tasks at random moments: no process may be left running."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from drills.processes import Marked, NotInTime, launcher, until
from drills.table import Outcome

OWN_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
SCRIPT = Path(__file__).with_name("stubborn_task.py")
LIMIT = 2.0
"""Seconds within which all must be over, from the moment something broke."""
SLACK = 1.0
"""What a busy machine may add to see that it is over: this watches from outside, by reading /proc."""
CHECKED = f"nothing is left running after {LIMIT + SLACK:g} s"


def _interrupt(job: Marked, _: Random) -> None:
    os.kill(job.pid, signal.SIGINT)


def _terminate(job: Marked, _: Random) -> None:
    os.kill(job.pid, signal.SIGTERM)


def _hang_up(job: Marked, _: Random) -> None:
    os.kill(job.pid, signal.SIGHUP)


def _kill_launcher(job: Marked, _: Random) -> None:
    os.kill(job.pid, signal.SIGKILL)


def _kill_one(text: str) -> Callable[[Marked, Random], None]:
    def kill(job: Marked, random: Random) -> None:
        found = sorted(set(job.find(text)) - {job.pid})
        if not found:  # too early for that: the launcher itself, then
            return _kill_launcher(job, random)
        with contextlib.suppress(ProcessLookupError):
            os.kill(random.choice(found), signal.SIGKILL)
        return None

    return kill


def _freeze_then_interrupt(job: Marked, random: Random) -> None:
    for pid in job.find(SCRIPT.name):
        if pid != job.pid and random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
    os.kill(job.pid, signal.SIGINT)


BREAKS: dict[str, Callable[[Marked, Random], None]] = {
    "launcher: Ctrl-C": _interrupt,
    "launcher: SIGTERM": _terminate,
    "launcher: SIGHUP": _hang_up,
    "launcher: kill -9": _kill_launcher,
    "launcher: kill -9 a keeper": _kill_one("keeper.py"),
    "launcher: kill -9 a task": _kill_one(SCRIPT.name),
    "launcher: freeze tasks, Ctrl-C": _freeze_then_interrupt,
}
CLOSED_TERMINAL = "launcher: closed terminal"


def drill(random: Random) -> Outcome:
    """Run one round: a random shape, broken in a random way at a random moment."""
    ps, workers = random.choice([0, 0, 1]), random.randint(1, 3)
    arguments = [
        "--ps",
        str(ps),
        "--workers",
        str(workers),
        *(["--evaluator"] if random.random() < 0.3 else []),
    ]
    name = random.choice([*BREAKS, CLOSED_TERMINAL])
    early = random.random() < 0.3
    moment = random.uniform(0.0, 0.4)
    if name == CLOSED_TERMINAL:
        return _close_terminal(arguments, moment)
    with launcher(*arguments, SCRIPT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        if not early:
            until("every worker to have its three", lambda: len(job.find("grandchild")) >= 3 * workers)
        time.sleep(moment)  # the moment is what is random here, not something to wait for
        return _measure(name, job, lambda: BREAKS[name](job, random))


def _close_terminal(arguments: list[str], moment: float) -> Outcome:
    master, terminal = pty.openpty()
    with Marked(
        [sys.executable, "-c", OWN_TERMINAL, "-m", "stratagem", "run", *arguments, str(SCRIPT)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        new_session=False,
    ) as job:
        os.close(terminal)
        time.sleep(moment)
        return _measure(CLOSED_TERMINAL, job, lambda: os.close(master))


def _measure(name: str, job: Marked, break_it: Callable[[], None]) -> Outcome:
    break_it()
    began = time.monotonic()
    try:
        return Outcome(name, job.gone(LIMIT + SLACK), checked=CHECKED)
    except NotInTime as error:
        return Outcome(name, time.monotonic() - began, str(error), CHECKED)


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcomes of this number of rounds."""
    random = Random(seed)
    return [drill(random) for _ in range(rounds)]
