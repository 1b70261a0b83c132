"""The Estimator's example alone, on workers in step and on parameter servers, each with an evaluator task."""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drills.nursery import ROOT, Nursery
from proofs import ESTIMATOR, Proves
from stratagem.devices import virtual_device_environment
from unit.classic.estimator import models

EXAMPLE = "examples/estimator_digits.py"
RUN = ("stratagem", "run", "--evaluator")


@dataclass
class Job:
    """What a run of the example has printed, and where its model is."""

    out: str
    directory: Path

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", self.out)]

    @property
    def result(self) -> tuple[str, int, float]:
        """Who evaluated last, which step, and how well it did."""
        ((task, step, accuracy),) = re.findall(
            r"^(\[\S+\])? *step (\d+), accuracy ([\d.]+)", self.out, re.MULTILINE
        )
        return task, int(step), float(accuracy)


def run(nursery: Nursery, directory: Path, *argv: str, **environ: str) -> Job:
    said = nursery.said(*argv, "--model_dir", directory, environ=environ, seconds=110)
    return Job(said, directory)


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Job:
    devices = virtual_device_environment(2, os.environ)
    arguments = (EXAMPLE, "--steps", "200", "--strategy", "tpu")
    return run(nursery, tmp_path_factory.mktemp("alone"), *arguments, **devices)


@pytest.fixture(scope="module")
def together(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Job:
    arguments = (*RUN, "--workers", "2", EXAMPLE, "--steps", "200", "--strategy", "multi-worker")
    return run(nursery, tmp_path_factory.mktemp("together"), *arguments)


def evaluated_steps(directory: Path) -> list[int]:
    return [event.step for event in EventAccumulator(str(directory / "eval")).Reload().Scalars("accuracy")]


def test_alone_every_checkpoint_is_evaluated(alone: Job, proves: Proves) -> None:
    proves(ESTIMATOR, "TPU")
    task, step, accuracy = alone.result
    assert (task, step) == ("", 200)
    assert accuracy > 0.9
    assert evaluated_steps(alone.directory) == [100, 200]


def test_workers_in_step_train_the_same_model_and_an_evaluator_looks_on(
    alone: Job, together: Job, proves: Proves
) -> None:
    proves(ESTIMATOR, "MultiWorkerMirrored")
    task, step, accuracy = together.result
    assert (task, step) == ("[evaluator:0]", 200)
    assert accuracy == pytest.approx(alone.result[2], abs=0.01)
    assert len(together.losses) == 2  # the chief's alone
    assert together.losses == pytest.approx(alone.losses, abs=2e-3)
    assert evaluated_steps(together.directory)[-1] == 200


def test_parameter_servers_go_on_from_there(
    nursery: Nursery, tmp_path: Path, together: Job, proves: Proves
) -> None:
    proves(ESTIMATOR, "Async")
    directory = tmp_path / "model"  # with what the other run has left to say that it was over
    shutil.copytree(together.directory, directory)
    shutil.rmtree(directory / "eval")
    arguments = (*RUN, "--ps", "1", "--workers", "2", EXAMPLE, "--steps", "320", "--strategy", "ps")
    job = run(nursery, directory, *arguments)
    task, step, accuracy = job.result
    assert task == "[evaluator:0]"
    assert 320 <= step <= 321
    assert accuracy >= together.result[2] - 0.02
    steps = sorted(int(path.name.removeprefix("step-")) for path in (directory / "checkpoints").iterdir())
    assert steps[:2] == [100, 200]
    assert steps[-1] == evaluated_steps(directory)[-1] == step
    assert re.search(r"\[worker:0\] +step \d+: loss", job.out)


@pytest.mark.parametrize(
    ("strategy", "servers"), [("MultiWorkerMirroredStrategy", "0"), ("ParameterServerStrategy", "1")]
)
def test_workers_with_data_of_their_own_evaluate_with_the_strategy_that_trained(
    nursery: Nursery, tmp_path: Path, strategy: str, servers: str
) -> None:
    script = str(Path(__file__).with_name("own_data_job.py"))
    launcher = ("stratagem", "run", "--ps", servers, "--workers", "2")
    job = run(nursery, tmp_path, *launcher, script, strategy, PYTHONPATH=str(ROOT / "tests"))
    told = [json.loads(line) for line in re.findall(r"\[worker:\d\] +(\{.*\})", job.out)]
    assert len(told) == 2
    assert told[0] == told[1]
    predicted = told[0].pop("predicted")
    one_device = models.estimator(tmp_path)
    expected = one_device.evaluate(models.test_batches)
    assert told[0] == pytest.approx(expected, rel=1e-5)
    assert predicted == pytest.approx(
        sum(row["y"] for row in one_device.predict(models.test_batches)), rel=1e-4
    )
    if servers == "0":
        assert expected["global_step"] == 3  # as many as the worker with the most batches has


def test_the_example_is_short() -> None:
    assert len((ROOT / EXAMPLE).read_text().splitlines()) < 80
