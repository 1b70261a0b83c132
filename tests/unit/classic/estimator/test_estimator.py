"""An Estimator in one process: it trains, goes on, evaluates, predicts, and says what is wrong."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stratagem as sg
from proofs import ESTIMATOR, Proves, column
from stratagem.classic.estimator import Hook
from unit.classic.estimator import models


def values(estimator: sg.Estimator) -> dict[str, Any]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sg.Estimator:
    """Five steps old; only to be looked at."""
    return models.estimator(tmp_path_factory.mktemp("trained")).train(models.batches, max_steps=5)


class Heard(Hook):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def begin(self, step: int) -> None:
        self.told.append(("begin", step))

    def after_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        assert np.isfinite(float(metrics["loss"]))
        self.told.append(step)

    def end(self, step: int) -> None:
        self.told.append(("end", step))


def test_it_learns_and_tells_how_well(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path)
    assert estimator.latest_checkpoint() is None
    assert estimator.train(models.batches, steps=1) is estimator
    before = estimator.evaluate(models.test_batches)
    after = estimator.train(models.batches, max_steps=300).evaluate(models.test_batches)
    assert set(after) == {"loss", "absolute", "global_step"}
    assert (before["global_step"], after["global_step"]) == (1, 300)
    assert after["loss"] < 0.01 < before["loss"]
    assert str(estimator.latest_checkpoint()).endswith("step-000000000300")


def test_evaluation_is_the_mean_over_all_rows(trained: sg.Estimator) -> None:
    weights = {"dense": {"kernel": trained.get_variable_value("dense/kernel")}}
    weights["bias"] = trained.get_variable_value("bias")
    found = trained.evaluate(models.test_batches)  # of 25 and of 15 rows
    assert found["loss"] == pytest.approx(float(models.loss(weights, models.X, models.Y)), rel=1e-5)
    assert found["absolute"] == pytest.approx(float(models.absolute(weights, models.X, models.Y)), rel=1e-5)
    first = trained.evaluate(models.test_batches, steps=1)
    assert first["loss"] == pytest.approx(float(models.loss(weights, models.X[:25], models.Y[:25])), rel=1e-5)


def test_going_on_is_the_same_as_not_having_stopped(tmp_path: Path) -> None:
    whole = models.estimator(tmp_path / "whole", noise=True).train(models.batches, max_steps=20)
    models.estimator(tmp_path / "parts", noise=True).train(models.batches, max_steps=7)
    parts = models.estimator(tmp_path / "parts", noise=True).train(models.batches, steps=13)
    assert values(whole)["global_step"] == 20
    assert_same(values(parts), values(whole))
    heard = Heard()
    parts.train(models.batches, max_steps=20, hooks=[heard])
    assert heard.told == []  # there is nothing left to train


def test_a_seed_makes_another_model(tmp_path: Path, trained: sg.Estimator) -> None:
    other = models.estimator(tmp_path, seed=2).train(models.batches, max_steps=5)
    assert not np.array_equal(values(other)["dense/kernel"], values(trained)["dense/kernel"])


@pytest.mark.parametrize(
    "strategy",
    [sg.MirroredStrategy, sg.CentralStorageStrategy, sg.MultiWorkerMirroredStrategy],
)
def test_every_strategy_of_one_process_gives_the_same(
    tmp_path: Path, trained: sg.Estimator, strategy: Any, proves: Proves
) -> None:
    proves(ESTIMATOR, column(strategy.__name__))
    proves(ESTIMATOR, "OneDevice")  # which trained the other
    given = strategy() if strategy is sg.MirroredStrategy else strategy
    other = models.estimator(tmp_path, train_distribute=given, eval_distribute=given)
    other.train(models.batches, max_steps=5)
    for name, value in values(trained).items():
        np.testing.assert_allclose(values(other)[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    expected = trained.evaluate(models.test_batches)
    assert other.evaluate(models.test_batches) == pytest.approx(expected, rel=1e-5)


def test_predictions_come_row_by_row(trained: sg.Estimator) -> None:
    found = list(trained.predict(lambda: [models.X[:25], models.X[25:]]))
    assert len(found) == 40
    assert set(found[0]) == {"x", "y"}
    np.testing.assert_array_equal([row["x"] for row in found], models.X)
    labelled = list(trained.predict(models.test_batches, predict_keys="y"))
    assert [set(row) for row in labelled] == [{"y"}] * 40
    np.testing.assert_array_equal([row["y"] for row in labelled], [row["y"] for row in found])


def test_checkpoints_are_made_kept_and_chosen(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, save_checkpoints_steps=4, keep_checkpoint_max=2)
    estimator.train(models.batches, max_steps=10)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-000000000008", "step-000000000010"]
    older = estimator.evaluate(
        models.test_batches, checkpoint_path=tmp_path / "checkpoints" / "step-000000000008"
    )
    assert older["global_step"] == 8
    with pytest.raises(sg.KeepError, match=r"step-000000000004 is not a checkpoint.*step-000000000008"):
        estimator.evaluate(
            models.test_batches, checkpoint_path=tmp_path / "checkpoints" / "step-000000000004"
        )


def test_checkpoints_that_go_while_they_are_looked_at(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, keep_checkpoint_max=1).train(models.batches, max_steps=1)

    def input_fn() -> list[Any]:
        estimator.train(models.batches, max_steps=2)  # as others do at any time
        return models.test_batches()

    assert estimator.evaluate(input_fn)["global_step"] == 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000000002"]


def test_export_holds_the_parameters(tmp_path: Path, trained: sg.Estimator) -> None:
    trained.export(tmp_path / "model.safetensors")
    exported = load_file(tmp_path / "model.safetensors")
    assert set(exported) == {"dense/kernel", "bias"}
    np.testing.assert_array_equal(exported["dense/kernel"], trained.get_variable_value("dense/kernel"))
    with pytest.raises(sg.KeepError, match=r"no variable 'kernel'; it has global_step, bias, dense/kernel"):
        trained.get_variable_value("kernel")


def test_summaries(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, save_summary_steps=2).train(models.batches, steps=5)
    found = estimator.evaluate(models.test_batches, name="test")
    written = EventAccumulator(str(tmp_path)).Reload()
    assert set(written.Tags()["scalars"]) == {"loss", "global_step/sec"}
    assert [event.step for event in written.Scalars("loss")] == [2, 4]
    evaluated = EventAccumulator(str(tmp_path / "eval_test")).Reload().Scalars("absolute")
    assert [(event.step, event.value) for event in evaluated] == [(5, pytest.approx(found["absolute"]))]


def test_hooks_hear_every_step(tmp_path: Path) -> None:
    heard = Heard()
    estimator = models.estimator(tmp_path).train(models.batches, steps=2, hooks=[heard])
    estimator.train(models.batches, max_steps=3, hooks=[heard])
    assert heard.told == [("begin", 0), 1, 2, ("end", 2), ("begin", 2), 3, ("end", 3)]


def test_input_of_a_worker_of_its_own(tmp_path: Path) -> None:
    asked = []

    def input_fn(input_context: sg.InputContext) -> Any:
        asked.append(input_context)
        return models.test_batches()

    found = models.estimator(tmp_path).train(input_fn).evaluate(input_fn)
    assert found["global_step"] == 2  # to the end of the batches
    assert [(each.num_input_pipelines, each.input_pipeline_id) for each in asked] == [(1, 0)] * 2


def test_progress_is_told_in_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models.estimator(tmp_path, log_step_count_steps=2).train(models.batches, steps=4)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step 2", "step 4"]
    assert "global step 4" in lines[1]


def test_asked_to_end_it_saves(tmp_path: Path) -> None:
    class Ending(Hook):
        def after_step(self, step: int, metrics: Mapping[str, Any]) -> None:
            if step == 3:
                signal.raise_signal(signal.SIGTERM)

    estimator = models.estimator(tmp_path)
    with pytest.raises(SystemExit) as ended:
        estimator.train(models.batches, hooks=[Ending()])
    assert ended.value.code == 143
    assert estimator.get_variable_value("global_step") == 3


def test_model_fn_may_ask_for_less(tmp_path: Path) -> None:
    def small(features: Any) -> sg.EstimatorSpec:
        assert (features.shape, features.dtype) == ((25, 3), np.float32)
        return sg.EstimatorSpec(models.init, models.loss, optimizer=optax.sgd(0.1))

    found = sg.Estimator(small, tmp_path).train(models.test_batches, steps=1).evaluate(models.test_batches)
    assert set(found) == {"loss", "global_step"}


# What is said of mistakes.


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path)
    for ask in (
        lambda: estimator.evaluate(models.test_batches),
        lambda: estimator.predict(models.test_batches),
        estimator.get_variable_names,
        lambda: estimator.export(tmp_path / "model"),
    ):
        with pytest.raises(sg.KeepError, match=r"no checkpoint in .*checkpoints yet: call train\(\) first"):
            ask()


def test_batches_without_labels(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path)
    with pytest.raises(sg.DataError, match=r"batch 0 of input_fn is a ndarray and has no labels: to train"):
        estimator.train(lambda: [models.X])


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ((models.X, models.Y), "input_fn returned a tuple; it has to return an iterable of batches"),
        ([], "input_fn returned no batch"),
        ([(models.X, models.Y, models.Y)], r"batch 0 of input_fn is a tuple of 3; give tuples of two"),
        ([(models.X, models.Y[:5])], r"same number of rows.*\[0\]: 40, \[1\]: 5"),
        ([({"name": np.array(["a"])}, np.zeros(1))], r"features\['name'\] of a batch is of type <U1"),
    ],
)
def test_batches_that_are_none(tmp_path: Path, returned: Any, told: str) -> None:
    with pytest.raises(sg.DataError, match=told):
        models.estimator(tmp_path).train(lambda: returned)


def test_batches_that_change(tmp_path: Path) -> None:
    wide = np.zeros((4, 5), np.float32)
    with pytest.raises(sg.DataError, match=r"features of batch 1 has the shape \(4, 5\), and \(40, 3\)"):
        models.estimator(tmp_path).train(lambda: [(models.X, models.Y), (wide, models.Y[:4])])
    with pytest.raises(sg.DataError, match="batch 1 of input_fn has another structure than the first"):
        models.estimator(tmp_path).train(lambda: [(models.X, models.Y), ({"x": models.X}, models.Y)])


def test_another_model_in_the_directory(trained: sg.Estimator) -> None:
    other = sg.LinearRegressor(model_dir=trained.model_dir)
    with pytest.raises(sg.KeepError, match="of another model"):
        other.train(models.test_batches)
    with pytest.raises(sg.KeepError, match="of another model"):
        other.evaluate(models.test_batches)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (None, "returned None; it has to return an EstimatorSpec"),
        ({"loss": models.loss}, "returned no optimizer in mode 'train', which needs loss and optimizer"),
        ({"optimizer": optax.sgd(0.1)}, "returned no loss in mode 'train'"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; give an optax optimizer"),
        ({"loss": 0.5}, "loss is 0.5; give a function loss"),
        (
            {"loss": lambda p, batch: 0.0},
            r"loss is a function of \(p, batch\); give a function loss\(params, ",
        ),
        ({"predictions": lambda p: p}, r"predictions is a function of \(p\)"),
        ({"eval_metrics": {"one": lambda p, x: 1.0}}, r"eval_metrics\['one'\] is a function of \(p, x\)"),
        ({"eval_metrics": {"loss": models.loss}}, "which evaluate.. returns by itself"),
    ],
)
def test_specs_that_cannot_be_meant(tmp_path: Path, spec: dict[str, Any] | None, told: str) -> None:
    estimator = sg.Estimator(
        lambda features: None if spec is None else sg.EstimatorSpec(models.init, **spec), tmp_path
    )
    with pytest.raises(sg.StrategyError, match=told):
        estimator.train(models.test_batches)


def refused(directory: Path, batch: Any = (models.X, models.Y), init: Any = models.init, **spec: Any) -> str:
    """What is said of a model when it is to be trained."""
    whole = {"init": init, "loss": models.loss, "optimizer": optax.sgd(0.1), **spec}
    estimator = sg.Estimator(lambda features: sg.EstimatorSpec(**whole), directory)
    with pytest.raises((sg.StrategyError, sg.DataError)) as raised:
        estimator.train(lambda: [batch])
    return str(raised.value)


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda mean, rows: rows, "returned an array float32[40]; give the mean loss over the rows"),
        (lambda mean, rows: None, "returned None;"),
        (lambda mean, rows: 3, "returned an int;"),
        (lambda mean, rows: (mean, 3.0), "returned (an array float32[], a float);"),
        (lambda mean, rows: (mean, {}, rows), "returned (an array float32[], a dict, an array float32[40]);"),
    ],
)
def test_losses_that_are_none(tmp_path: Path, returned: Any, told: str) -> None:
    def loss(weights: Any, features: Any, labels: Any) -> Any:
        return returned(models.loss(weights, features, labels), models.predict(weights, features))

    assert f"EstimatorSpec.loss {told}" in refused(tmp_path, loss=loss)


@pytest.mark.parametrize(
    ("init", "told"),
    [
        (lambda rng: {}, "is a function of (rng); give a function init(rng, features) -> params"),
        (lambda rng, features: None, "returned None, which has no array in it; give a pytree"),
        (lambda rng, features: {"w": jnp.zeros(3, int)}, "returned an array int32[3] at ['w']; give"),
        (lambda rng, features: {"w": "x"}, "returned a str at ['w']"),
    ],
)
def test_parameters_that_are_none(tmp_path: Path, init: Any, told: str) -> None:
    assert f"EstimatorSpec.init {told}" in refused(tmp_path, init=init)


def test_labels_that_a_loss_misses(tmp_path: Path) -> None:
    told = refused(tmp_path, batch=(models.X, None))
    assert told.startswith("EstimatorSpec.loss raised TypeError: ")
    assert "The batches have no labels, they are (features, None)" in told


@pytest.mark.parametrize(
    "compute", [lambda features: features @ jnp.zeros(3), lambda features: features.mean()]
)
def test_a_model_function_that_computes(tmp_path: Path, compute: Any) -> None:
    with pytest.raises(sg.StrategyError, match=r"computes with features or labels: .*ShapeDtypeStruct"):
        sg.Estimator(compute, tmp_path).train(models.test_batches)
    with pytest.raises(TypeError, match=r"^its own"):
        sg.Estimator(raises_its_own, tmp_path).train(models.test_batches)


def raises_its_own(features: Any) -> sg.EstimatorSpec:
    raise TypeError("its own")


def test_metrics_that_are_no_numbers(tmp_path: Path) -> None:
    def model_fn(features: Any) -> sg.EstimatorSpec:
        rows = {"rows": lambda weights, features, labels: labels}
        return sg.EstimatorSpec(
            models.init, models.loss, lambda weights, features: jnp.zeros(3), rows, optax.sgd(0.1)
        )

    estimator = sg.Estimator(model_fn, tmp_path).train(models.test_batches, steps=1)
    with pytest.raises(sg.DataError, match=r"'rows' is an array of shape \(25,\); give one number"):
        estimator.evaluate(models.test_batches)
    with pytest.raises(sg.DataError, match=r"'predictions' has the shape \(3,\) for 25 rows"):
        next(estimator.predict(models.test_batches))
    with pytest.raises(sg.DataError, match="predicts predictions, not 'y'"):
        next(estimator.predict(models.test_batches, predict_keys=["y"]))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"model_fn": 3}, "model_fn is 3"),
        ({"model_fn": lambda features, extra: None}, "model_fn asks for extra"),
        ({"model_fn": lambda features: None, "params": {}}, "does not ask for params"),
        ({"model_fn": lambda features: None, "config": {}}, "give an sg.RunConfig"),
        (
            {"model_fn": lambda features: None, "model_dir": "a", "config": sg.RunConfig(model_dir="b")},
            "give it once",
        ),
    ],
)
def test_arguments_that_cannot_be_meant(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(sg.StrategyError, match=told):
        sg.Estimator(**arguments)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "give one of them"),
        ({"save_checkpoints_steps": 0}, "save_checkpoints_steps is 0; give a whole number of at least 1"),
        ({"save_checkpoints_secs": 0}, "give a number of seconds above 0"),
        ({"train_distribute": "mirrored"}, "train_distribute is 'mirrored'; give a strategy, its class"),
        ({"keep_checkpoint_max": None}, "keep_checkpoint_max is None; give a whole number of at least 1$"),
        ({"keep_checkpoint_max": 0}, "keep_checkpoint_max is 0; give a whole number of at least 1$"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(sg.StrategyError, match=told):
        sg.RunConfig(**settings)


def test_calls_that_cannot_be_meant(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, train_distribute=lambda: 3)
    with pytest.raises(sg.StrategyError, match="steps is 1 and max_steps is 2: give one of them"):
        estimator.train(models.batches, steps=1, max_steps=2)
    with pytest.raises(sg.StrategyError, match="train_distribute returned 3"):
        estimator.train(models.batches, steps=1)
    with pytest.raises(sg.StrategyError, match=r"input_fn asks for size; .*functools.partial"):
        estimator.train(lambda size: [], steps=1)
    wrong: list[Any] = [[5], 5, Hook(), [Hook]]
    for hooks in wrong:
        with pytest.raises(
            sg.StrategyError, match=r"hooks is .*; give a list of objects whose classes derive"
        ):
            estimator.train(models.batches, steps=1, hooks=hooks)
        with pytest.raises(sg.StrategyError, match=r"TrainSpec\.hooks is "):
            sg.TrainSpec(models.batches, hooks=hooks)
    with pytest.raises(
        sg.StrategyError, match=r"(?s)input_fn is \[.*; give a function that returns"
    ) as raised:
        estimator.train([(models.X, models.Y)] * 10)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 300  # the data are not in it


def test_whole_numbers_may_be_those_of_numpy(tmp_path: Path) -> None:
    estimator = models.estimator(tmp_path, save_checkpoints_steps=np.int32(4), seed=np.int64(1))
    one: Any = np.int64(1)
    estimator.train(models.batches, steps=one).train(models.batches, max_steps=one + 1)
    assert estimator.evaluate(models.test_batches, steps=one)["global_step"] == 2
    assert type(sg.TrainSpec(models.batches, max_steps=one).max_steps) is int


def test_a_cluster_without_a_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    with pytest.raises(
        sg.StrategyError, match=r"TF_CONFIG describes a cluster of 2 tasks, but RunConfig has no"
    ):
        models.estimator(tmp_path).train(models.batches, steps=1)


# One strategy to train, evaluate and predict with.


def test_a_maker_of_both_strategies_makes_one(tmp_path: Path) -> None:
    made = []

    def maker() -> sg.MirroredStrategy:
        made.append(sg.MirroredStrategy())
        return made[-1]

    estimator = models.estimator(tmp_path, train_distribute=maker, eval_distribute=maker)
    estimator.train(models.batches, max_steps=2)
    assert estimator.evaluate(models.test_batches)["global_step"] == 2
    assert len(list(estimator.predict(models.test_batches))) == 40
    assert len(made) == 1


@pytest.mark.parametrize("kind", [sg.MultiWorkerMirroredStrategy, sg.ParameterServerStrategy])
@pytest.mark.parametrize("is_made_before", [False, True])
def test_on_an_evaluator_a_strategy_of_several_processes_is_one_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, is_made_before: bool
) -> None:
    models.estimator(tmp_path).train(models.batches, max_steps=2)
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:3"]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})
    )
    strategy = kind() if is_made_before else kind
    estimator = models.estimator(tmp_path, train_distribute=strategy, eval_distribute=strategy)
    assert estimator.evaluate(models.test_batches)["global_step"] == 2
    assert len(list(estimator.predict(models.test_batches))) == 40
    estimator.export(tmp_path / "exported.safetensors")
    assert (tmp_path / "exported.safetensors").exists()
    with pytest.raises(sg.StrategyError, match=r"evaluator.* does not train: it evaluates what"):
        estimator.train(models.batches, max_steps=4)
