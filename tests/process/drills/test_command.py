"""`python -m drills`: the table, what is chosen, and how it ends."""

import io
import sys
import textwrap

import pytest
from rich.console import Console

from drills.hosts import NotHere
from drills.processes import Marked
from drills.rounds import attempt
from drills.table import Outcome, show


def shown(*outcomes: Outcome) -> tuple[bool, str]:
    output = io.StringIO()
    return show(outcomes, Console(file=output, width=200)), output.getvalue()


def row(text: str, drill: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"│ {drill} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_one_row_for_each_drill() -> None:
    is_well, text = shown(
        Outcome("b", 1.0, checked="this"),
        Outcome("a", 2.0, checked="that"),
        Outcome("b", 3.0, checked="this"),
    )
    assert is_well
    assert row(text, "a") == ["a", "1", "1", "2.00 s", "that", "none"]
    assert row(text, "b") == ["b", "2", "2", "3.00 s", "this", "none"]


def test_the_first_problem_is_in_the_row_and_all_are_under_it() -> None:
    is_well, text = shown(Outcome("a", 1.0), Outcome("a", 2.0, "it [hangs]\nlog"), Outcome("a", 3.0, "again"))
    assert not is_well
    assert row(text, "a") == ["a", "3", "1", "3.00 s", "", "it [hangs]"]
    assert "a: it [hangs]\nlog" in text
    assert "a: again" in text


def test_what_cannot_be_done_here_is_no_failure() -> None:
    def skip() -> None:
        raise NotHere("no hosts")

    is_well, text = shown(attempt("a", "this", skip))
    assert is_well
    assert row(text, "a") == ["a", "0", "0", "-", "this", "not run: no hosts"]


def test_whatever_a_round_raises_is_its_problem() -> None:
    def fail() -> None:
        error = KeyError("w")
        error.add_note("the log")
        raise error

    assert attempt("a", "this", fail).problem == "KeyError: 'w'\nthe log"
    assert attempt("a", "this", lambda: None).problem is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--only", "checkpoints", "--rounds", "2"], 0, "checkpoints: kill -9"),
        (["--only", "floods"], 2, "invalid choice: 'floods' (choose from"),
        (["--rounds", "0"], 2, "--rounds is 0; at least 1 is needed"),
    ],
)
def test_the_command(arguments: list[str], code: int, words: str) -> None:
    with Marked([sys.executable, "-m", "drills", *arguments], environ={"COLUMNS": "200"}) as command:
        found, out, err = command.finish(90)
    assert found == code, err
    assert words in out + err


def test_children_hear_signals_that_the_drills_were_told_to_ignore() -> None:
    code = """
        import subprocess, sys
        from drills.processes import let_children_be_signalled
        shows = "import signal; print([signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)])"
        subprocess.run([sys.executable, "-c", shows])
        let_children_be_signalled()
        subprocess.run([sys.executable, "-c", shows])
    """
    words = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", sys.executable, "-c", textwrap.dedent(code)]
    with Marked(words) as job:
        status, out, err = job.finish()
    assert (status, err) == (0, "")
    before, after = out.splitlines()
    assert before.count("SIG_IGN") == 2
    assert "default_int_handler" in after and "SIG_DFL" in after
