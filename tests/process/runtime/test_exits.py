"""What runs when a process ends: only if it ends well, newest first, once."""

import signal
import subprocess
import sys

import pytest

PRELUDE = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from stratagem.runtime.exits import at_normal_exit

def in_threads():
    with ThreadPoolExecutor(2) as threads:
        print("threads", *threads.map(lambda number: number + 1, [0, 1]), flush=True)

def fail():
    raise ValueError("of a callback")

at_normal_exit(in_threads)
at_normal_exit(fail)
at_normal_exit(lambda: print("second", flush=True))
cancel = at_normal_exit(lambda: print("cancelled", flush=True))
cancel()
cancel()
"""
ALL = ["second", "threads 1 2"]

pytestmark = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3), reason="this Python starts no threads when it ends"
)


def run(body: str) -> tuple[int, list[str], str]:
    done = subprocess.run([sys.executable, "-c", PRELUDE + body], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "",
        "sys.exit()",
        "sys.exit(0)",
        "thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()",
        "thread = threading.Thread(target=sys.exit, args=(3,)); thread.start(); thread.join()",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass",
    ],
    ids=["the end", "exit", "exit 0", "error in a thread", "exit in a thread", "a caught error"],
)
def test_a_process_that_ends_well(body: str) -> None:
    code, lines, errors = run(body)
    assert code == 0, errors
    assert lines == ALL


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit('no')", 1),
        ("1 / 0", 1),
        ("sys.excepthook = print; 1 / 0", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
    ids=[
        "exit 3",
        "exit with words",
        "an error",
        "an error, told in another way",
        "Ctrl-C",
        "_exit",
        "a signal",
    ],
)
def test_a_process_that_does_not(body: str, expected: int) -> None:
    code, lines, errors = run(body)
    assert code == expected, errors
    assert not {*lines} & {*ALL}


def test_a_callback_that_fails_is_told_and_keeps_nobody() -> None:
    code, lines, errors = run("")
    assert (code, lines) == (0, ALL)
    assert "ValueError: of a callback" in errors


def test_a_forked_child_does_not_speak_for_its_parent() -> None:
    body = "child = os.fork()\nif child:\n    print('child', os.waitpid(child, 0)[1], flush=True)"
    code, lines, errors = run(body)
    assert code == 0, errors
    assert lines == ["child 0", *ALL]


def test_importing_changes_nothing() -> None:
    body = "import sys, threading\nbefore = sys.exit, len(threading._threading_atexits)\nimport stratagem.runtime.exits\n"
    check = "import concurrent.futures.thread\nassert sys.exit is before[0]\n"
    counted = "assert len(threading._threading_atexits) <= before[1] + 1  # that of concurrent.futures\n"
    done = subprocess.run(
        [sys.executable, "-c", body + check + counted], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


COMPUTES = """
import threading, time
import jax
from stratagem.runtime.exits import DAEMON_WORK

double = jax.jit(lambda x: x + x)
is_under_way = threading.Event()

def compute():
    while True:
        with DAEMON_WORK:
            double(1.0).block_until_ready()
            is_under_way.set()

class Slow:  # the interpreter takes a while to be taken down
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

slow = Slow()
for _ in range(2):
    threading.Thread(target=compute, daemon=True).start()
is_under_way.wait()
"""


@pytest.mark.parametrize(("end", "expected"), [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1)])
def test_threads_that_compute_do_not_abort_the_process_at_its_end(end: str, expected: int) -> None:
    words = [sys.executable, "-c", COMPUTES + end]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == expected, done.stderr
    assert "terminate called" not in done.stderr


def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    words = [sys.executable, "-c", FORKS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "settled True\n"), done.stderr


FORKS = """
import os, sys, threading
from stratagem.runtime.exits import DAEMON_WORK

is_under_way = threading.Event()

def stay():
    with DAEMON_WORK:
        is_under_way.set()
        threading.Event().wait()

threading.Thread(target=stay, daemon=True).start()
is_under_way.wait()
child = os.fork()
if child == 0:
    print("settled", DAEMON_WORK.settle(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
