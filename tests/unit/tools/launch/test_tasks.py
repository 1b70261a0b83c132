"""The failure to read first."""

from stratagem.tools.launch.tasks import StderrTail, TaskFailure, TaskName, describe_exit, failure_report


def words(text: str) -> StderrTail:
    last = StderrTail()
    for number, line in enumerate(text.splitlines()):
        last.feed(line.encode(), float(number))
    return last


def test_last_traceback_is_kept_from_its_beginning() -> None:
    last = words(
        "noise\nTraceback (most recent call last):\n  old\nKeyError: 1\nmore\nTraceback (most recent call last):\n  new\nValueError: 2"
    )
    assert last.text() == "Traceback (most recent call last):\n  new\nValueError: 2"
    assert last.traceback_began == 5.0


def test_chained_tracebacks_belong_together() -> None:
    text = (
        "Traceback (most recent call last):\n  a\nKeyError: 1\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  b\nValueError: 2"
    )
    last = words(f"noise\n{text}")
    assert last.text() == text
    assert last.traceback_began == 1.0


def test_without_traceback_the_last_lines() -> None:
    last = words("\n".join(str(number) for number in range(100)))
    assert last.traceback_began is None
    assert last.text().splitlines()[0] == "80"


def test_report_sorts_by_time() -> None:
    late = TaskFailure(TaskName("worker", 0), -6, 2.0, "lost worker:1")
    early = TaskFailure(TaskName("worker", 1), 1, 1.0, "Traceback\nValueError: no")
    assert failure_report([late, early]) == (
        "worker:1 failed first, with exit code 1:\n  Traceback\n  ValueError: no\n"
        "then worker:0 failed, with signal SIGABRT"
    )


def test_report_of_a_silent_death() -> None:
    assert "wrote nothing to stderr" in failure_report([TaskFailure(TaskName("ps", 0), -9, 0.0, "")])


def test_exits_in_words() -> None:
    assert describe_exit(-9).startswith("signal SIGKILL (killed from outside")
    assert describe_exit(-64) == "signal SIGRTMAX"
    assert describe_exit(-99) == "signal 99"


def test_traceback_that_was_survived_is_not_the_failure() -> None:
    last = words("Traceback (most recent call last):\n  handled\nKeyError: 1\nand on it goes\nout of disk")
    assert last.failed_at(100.0) == 100.0
    assert last.text().endswith("out of disk")
    assert words("Traceback (most recent call last):\n  a\nKeyError: 1").failed_at(2.0) == 0.0
