"""How workers know which save of the chief's is the same as theirs."""

from stratagem.engines.chief_files import NOT_YET, PASSED, SAVED, ScriptProgress


def test_the_same_save_has_the_same_ticket_on_every_worker() -> None:
    chief, other = ScriptProgress(), ScriptProgress()
    for progress in (chief, other):
        progress.next_call()
        progress.next_batch()
    assert chief.ticket("a") == other.ticket("a") == (1, 1, 1)
    assert chief.ticket("a") == other.ticket("a") == (1, 1, 2)
    assert chief.ticket("b") == (1, 1, 1)
    for progress in (chief, other):
        progress.next_call()
    assert chief.ticket("a") == other.ticket("a") == (2, 0, 1)


def test_what_the_chief_answers() -> None:
    chief = ScriptProgress()
    chief.next_call()
    ticket = chief.ticket("a")
    assert chief.state("a", ticket) == NOT_YET
    assert chief.state("b", ticket) == NOT_YET
    chief.set_saved("a", ticket)
    assert chief.state("a", ticket) == SAVED
    assert chief.state("a", (1, 0, 2)) == NOT_YET, "the worker has saved it once more"
    assert chief.state("a", (1, 1, 1)) == NOT_YET, "the worker is a batch ahead"
    chief.next_batch()
    assert chief.state("a", ticket) == SAVED
    assert chief.state("b", ticket) == PASSED, "the chief has gone on without it"
    assert chief.state("a", (1, 0, 2)) == PASSED


def test_a_later_save_is_as_good() -> None:
    chief = ScriptProgress()
    chief.next_call()
    chief.set_saved("a", chief.ticket("a"))
    assert chief.state("a", (0, 5, 3)) == SAVED


def test_whether_the_chief_has_come_so_far() -> None:
    chief = ScriptProgress()
    chief.next_call()
    assert chief.state(None, (1, 0, 0)) == PASSED
    assert chief.state(None, (1, 1, 0)) == NOT_YET
