"""A process that is killed while it saves, at any moment: the last checkpoint that it had finished is restored."""

from drills.checkpoints import DURING, drills

ROUNDS = 50


def test_a_saver_killed_at_any_moment() -> None:
    outcomes = drills(ROUNDS, seed=50)
    assert [outcome for outcome in outcomes if outcome.problem] == []
    during = [outcome for outcome in outcomes if outcome.drill == DURING]
    assert len(during) > ROUNDS // 10, "hardly one was killed while it saved"
