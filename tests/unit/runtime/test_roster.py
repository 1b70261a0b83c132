"""Who has finished, who was given up, and what that makes of the job."""

from stratagem.runtime.roster import Roster

WORKERS = frozenset({"/job:worker/task:0", "/job:worker/task:1"})
FIRST, SECOND = sorted(WORKERS)


def test_a_job_whose_last_worker_is_given_up_is_done() -> None:
    roster = Roster(WORKERS)
    assert roster.finish(FIRST, 1.0)
    assert not roster.finish(FIRST, 2.0) and not roster.give_up(FIRST, 2.0)
    assert not roster.is_done
    assert roster.give_up(SECOND, 3.0)
    assert roster.is_done and not roster.has_failed
    assert (roster.finished, roster.given_up) == ([FIRST], [SECOND])


def test_a_job_has_failed_when_all_are_given_up() -> None:
    roster = Roster(WORKERS)
    for task in (*WORKERS, "/job:evaluator/task:0"):
        roster.give_up(task, 1.0)
    assert roster.is_done and roster.has_failed
    assert roster.given_up == [FIRST, SECOND]
    assert not roster.finish(FIRST, 2.0), "one that comes too late ends well, having done nothing"
    assert roster.has_failed


def test_who_never_came_counts_from_the_end_of_the_others() -> None:
    roster = Roster(WORKERS)
    roster.hear(FIRST, "a", 0.0)
    assert roster.silent(20.0, 10.0) == {FIRST}
    roster.give_up(FIRST, 20.0)
    assert not roster.silent(29.0, 10.0)
    assert roster.silent(31.0, 10.0) == {SECOND}


def test_nobody_is_waited_for_where_nobody_is_known() -> None:
    roster = Roster(frozenset())
    assert not roster.is_done and not roster.has_failed


def test_the_newer_start_of_a_task_speaks_for_it_whatever_the_older_says() -> None:
    roster = Roster(WORKERS)
    assert not roster.hear(FIRST, "older", 0.0)
    assert roster.hear(FIRST, "newer", 10.0)
    for now in (11.0, 12.0):
        assert not roster.hear(FIRST, "older", now), "it does not take its place back"
        assert not roster.hear(FIRST, "newer", now)
    assert roster.is_replaced(FIRST, "older")
    assert not roster.is_replaced(FIRST, "newer") and not roster.is_replaced(SECOND, "older")
    roster.hear(FIRST, "older", 100.0)
    assert roster.silent(100.0, 10.0) == {FIRST}, "the older one's signs of life are not the newer one's"
