"""Progress in a terminal: a bar that stays in its line, and a terminal that is left as it was found."""

import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

PRELUDE = """
import stratagem as sg

steps = sg.progress(range(50))
"""
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def in_terminal(script: Path, **environ: str) -> tuple[int, str]:
    """Run a script with a terminal of 100 columns for its output; its exit code, and all that it wrote."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (30, 100))
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**variables, "TERM": "xterm-256color", **environ},
    )
    os.close(its)
    told = bytearray()
    try:
        while data := _read(ours):
            told += data
        return process.wait(60), told.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other side is closed
        return b""


def visible(told: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told)


def test_a_bar_to_the_end(script: Callable[[str], Path]) -> None:
    code, told = in_terminal(
        script("""
        for step in steps:
            if step == 20:
                print("something that the script says")
            steps.tell({"loss": 1 / (1 + step)})
        """)
    )
    assert code == 0
    text = visible(told)
    assert "something that the script says\r\n" in text
    assert re.search(r"step 50/50 ━+ loss 0\.02, .* in all", text)
    assert told.count(HIDE) == told.count(SHOW) == 1
    assert text.count("\n") == 2  # what the script said, and the bar, which stays in its line


def test_workers_have_a_line_each(script: Callable[[str], Path]) -> None:
    code, told = in_terminal(
        script("""
        model = {"global_step": 1, "active": ["/job:worker/task:0"], "waits_for": [], "dropped": {}}
        status = {
            "/job:ps/task:0": {"parameters": {"m": model}},
            "/job:worker/task:0": {},
            "/job:worker/task:1": {"error": "gone"},
        }
        for step in steps:
            steps.tell({"loss": 1.0}, status=status)
        """)
    )
    assert code == 0
    assert "/job:worker/task:0: trains" in told and "/job:worker/task:1: does not answer" in told


def test_the_terminal_is_given_back_before_a_traceback(script: Callable[[str], Path]) -> None:
    code, told = in_terminal(
        script("""
        for step in steps:
            steps.tell({"loss": 1.0})
            if step == 5:
                raise RuntimeError("lost")
        """)
    )
    assert code == 1
    assert told.index(HIDE) < told.index(SHOW) < told.index("Traceback")
    assert "step 6/50" in visible(told)


def test_a_loop_that_is_left(script: Callable[[str], Path]) -> None:
    code, told = in_terminal(
        script("""
        for step in steps:
            steps.tell({"loss": 1.0})
            if step == 5:
                break
        print("after")
        """)
    )
    assert code == 0
    assert told.index(SHOW) < told.index("after")
    assert "step 6/50" in visible(told)


def test_a_terminal_that_cannot_redraw_gets_lines(script: Callable[[str], Path]) -> None:
    code, told = in_terminal(script("list(steps)"), TERM="dumb")
    assert code == 0
    assert "\x1b" not in told
    assert re.fullmatch(r"step 50/50: .*\r\n", told)
