"""`train_and_evaluate` in one process, and the rules and the shell of an evaluator beside finished checkpoints."""

import doctest
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stratagem as sg
from stratagem.classic.estimator import Hook
from stratagem.classic.estimator.evaluator import (
    DirectoryState,
    Evaluate,
    EvaluationSchedule,
    GiveUp,
    Stop,
    Wait,
    evaluator_marker,
    finished_marker,
)
from unit.classic.estimator import models

RUN = "STRATAGEM_RUN"
EVALUATOR = json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})


def evaluated_steps(directory: Path) -> list[int]:
    return [event.step for event in EventAccumulator(str(directory)).Reload().Scalars("loss")]


def specs(**settings: Any) -> tuple[sg.TrainSpec, sg.EvalSpec]:
    return sg.TrainSpec(models.batches, max_steps=9), sg.EvalSpec(models.test_batches, **settings)


# Alone.


def test_every_checkpoint_is_evaluated(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, save_checkpoints_steps=4)
    results = sg.train_and_evaluate(estimator, *specs(throttle_secs=0))
    assert results is not None and results["global_step"] == 9
    assert evaluated_steps(tmp_path / "eval") == [4, 8, 9]


def test_not_too_often_but_at_the_end(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, save_checkpoints_steps=4)
    results = sg.train_and_evaluate(estimator, *specs(throttle_secs=600, name="test"))
    assert results is not None and results["global_step"] == 9
    assert evaluated_steps(tmp_path / "eval_test") == [4, 9]


def test_again_when_there_is_nothing_to_train(tmp_path: Path) -> None:
    first = sg.train_and_evaluate(models.estimator(tmp_path), *specs())
    assert sg.train_and_evaluate(models.estimator(tmp_path), *specs()) == first


def test_what_is_no_estimator() -> None:
    with pytest.raises(sg.StrategyError, match="not a function and a TrainSpec and an EvalSpec"):
        sg.train_and_evaluate(models.model_fn, *specs())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"steps": 0}, "EvalSpec.steps is 0"),
        ({"throttle_secs": -1}, "throttle_secs is -1; give a number of seconds, 0 or more"),
        ({"wait_secs": 0}, "wait_secs is 0; give a number of seconds above 0"),
        ({"name": "a/b"}, "EvalSpec.name is 'a/b'"),
    ],
)
def test_specs_that_cannot_be_meant(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(sg.StrategyError, match=told):
        sg.EvalSpec(models.test_batches, **settings)


# The rules of an evaluator.


def schedule(**settings: Any) -> EvaluationSchedule:
    chosen = {"start_delay": 10, "throttle": 5, "patience": 100, "max_steps": 50, **settings}
    return EvaluationSchedule(0.0, **chosen)


def test_it_waits_for_its_start_unless_all_is_over() -> None:
    assert schedule().decide(1.0, DirectoryState(20)) == Wait(
        9.0, "the checkpoint of step 20 to be due (start_delay_secs)"
    )
    assert schedule().decide(10.0, DirectoryState(20)) == Evaluate()
    assert schedule().decide(1.0, DirectoryState(50)) == Evaluate()
    assert schedule().decide(1.0, DirectoryState(20, is_finished=True)) == Evaluate()


def test_it_throttles() -> None:
    rules = schedule()
    rules.record_evaluation(10.0, 20)
    assert rules.decide(12.0, DirectoryState(20)) == Wait(100.0, "a checkpoint after that of step 20")
    assert isinstance(rules.decide(14.0, DirectoryState(30)), Wait)
    assert rules.decide(15.0, DirectoryState(30)) == Evaluate()


@pytest.mark.parametrize("latest", [None, 20])
def test_it_stops_when_training_is_over(latest: int | None) -> None:
    rules = schedule(max_steps=None)
    if latest is not None:
        rules.record_evaluation(10.0, latest)
    assert rules.decide(20.0, DirectoryState(latest, is_finished=True)) == Stop()


def test_it_gives_up_when_there_is_no_sign_of_the_training() -> None:
    rules = schedule()
    assert isinstance(rules.decide(99.0, DirectoryState()), Wait)
    assert rules.decide(99.0, DirectoryState(fingerprint="a summary")) == Wait(100.0, "the first checkpoint")
    assert rules.decide(198.0, DirectoryState(fingerprint="a summary")) == Wait(1.0, "the first checkpoint")
    assert rules.decide(199.0, DirectoryState(fingerprint="a summary")) == GiveUp(
        "waited for the first checkpoint, and nothing was written for 100 seconds"
    )


# Its shell, on a directory where the training is over.


def test_an_evaluator_evaluates_the_last_checkpoint_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.estimator(tmp_path).train(models.batches, max_steps=9)
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)

    def never() -> sg.Strategy:
        raise AssertionError("an evaluator makes no strategy to train with")

    results = sg.train_and_evaluate(models.estimator(tmp_path, train_distribute=never), *specs())
    assert results is not None and results["global_step"] == 9
    assert evaluated_steps(tmp_path / "eval") == [9]


def test_an_evaluator_takes_the_sign_of_its_own_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN, "this")
    finished_marker(tmp_path).write(global_step=3)
    assert finished_marker(tmp_path).exists()
    monkeypatch.setenv(RUN, "another")
    assert not finished_marker(tmp_path).exists()
    finished_marker(tmp_path).remove()
    monkeypatch.setenv(RUN, "this")
    assert not finished_marker(tmp_path).exists()


def test_an_evaluator_ends_with_a_training_that_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = models.estimator(tmp_path).train(models.test_batches)
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    monkeypatch.setenv(RUN, "this")
    finished_marker(tmp_path).write(global_step=2)
    results = sg.train_and_evaluate(estimator, *specs())
    assert results is not None and results["global_step"] == 2


def test_an_evaluator_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    told = r"waited for the first checkpoint, and nothing was written for 0.1 seconds.*does the chief run"
    with pytest.raises(sg.DeadlineExceeded, match=told):
        sg.train_and_evaluate(models.estimator(tmp_path), *specs(start_delay_secs=0, wait_secs=0.1))


@pytest.mark.parametrize("module", ["training_loop", "checkpoint_reader", "evaluator"])
def test_examples(module: str) -> None:
    loaded = import_module(f"stratagem.classic.estimator.{module}")
    result = doctest.testmod(loaded, extraglobs={"RunConfig": sg.RunConfig})
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("is_evaluated", [False, True])
def test_on_a_cluster_the_chief_says_that_nobody_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_evaluated: bool
) -> None:
    task = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    estimator = models.estimator(tmp_path, train_distribute=sg.MultiWorkerMirroredStrategy)
    evaluator_marker(tmp_path).write()  # of an evaluator that is not there any more

    class Looked(Hook):
        def end(self, step: int) -> None:
            if is_evaluated:
                evaluator_marker(tmp_path).write()

    train_spec, eval_spec = sg.TrainSpec(models.batches, max_steps=9, hooks=[Looked()]), specs()[1]
    assert sg.train_and_evaluate(estimator, train_spec, eval_spec) is None
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == (0 if is_evaluated else 1)
    assert all("nobody has evaluated" in each and "stratagem run --evaluator" in each for each in said)


def test_an_evaluator_gives_a_sign_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.estimator(tmp_path).train(models.batches, max_steps=9)
    finished_marker(tmp_path).write(global_step=9)
    monkeypatch.setenv("TF_CONFIG", EVALUATOR)
    assert sg.train_and_evaluate(models.estimator(tmp_path), *specs(start_delay_secs=0)) is not None
    assert evaluator_marker(tmp_path).exists()
