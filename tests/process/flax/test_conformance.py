"""Flax models under all strategies: the same as plain Flax on one device with the same global batches."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unit.flax.models import plain

JOB = Path(__file__).with_name("job.py")
STEPS = 6
MEAN = "model['norm']['mean'].value"
VARIANCE = "model['norm']['var'].value"


@dataclass(frozen=True)
class Contender:
    """A strategy, and what it is started with."""

    expression: str
    devices: int = 1
    workers: int = 1
    ps: int = 0

    @property
    def command(self) -> list[str]:
        if self.workers == 1 and self.ps == 0:
            return [sys.executable, str(JOB)]
        numbers = ["--ps", str(self.ps), "--workers", str(self.workers)]
        return [sys.executable, "-m", "stratagem", "run", *numbers, str(JOB)]


CONTENDERS = {
    "Mirrored": Contender("sg.MirroredStrategy()", devices=2),
    "CentralStorage": Contender("sg.CentralStorageStrategy()", devices=2),
    "MultiWorkerMirrored": Contender("sg.MultiWorkerMirroredStrategy(communication='shm')", workers=2),
    "ParameterServer, in step": Contender("sg.ParameterServerStrategy(update=sg.Sync())", workers=2, ps=2),
    "ParameterServer, one worker": Contender("sg.ParameterServerStrategy()", ps=1),
}

Results = dict[str, Any]


@pytest.fixture(scope="module", params=CONTENDERS, ids=str)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Contender, list[Results]]:
    """A strategy, and what each of its workers has at the end."""
    contender = CONTENDERS[request.param]
    path = tmp_path_factory.mktemp("flax") / "results"
    environ = {
        "FLAX_DEVICES": str(contender.devices),
        "PYTHONPATH": str(JOB.parents[2]),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiling is most of what this costs
    }
    done = subprocess.run(
        [*contender.command, contender.expression, str(path)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = []
    for index in range(contender.workers):
        with np.load(f"{path}-{index}.npz") as stored:
            found.append(dict(stored))
    return contender, found


@pytest.fixture(scope="module")
def dense() -> Results:
    return plain("dense", STEPS)


@pytest.fixture(scope="module")
def noisy() -> Results:
    return plain("noisy", STEPS)


Job = tuple[Contender, list[Results]]


def close(found: Any, expected: Any, name: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_parameters_optimizer_metrics_and_predictions_are_those_of_plain_flax(
    job: Job, dense: Results
) -> None:
    for found in job[1]:
        assert found["dense/step"] == STEPS
        for name, value in dense.items():
            close(found[f"dense/{name}"], value, name)
    assert len(set(dense["loss"])) == STEPS


def test_one_process_is_plain_flax_and_several_have_the_mean_of_their_statistics(
    job: Job, noisy: Results
) -> None:
    contender, found = job
    is_alone = contender.workers == 1 and contender.ps == 0
    names = [name for name in noisy if not name.startswith("optimizer")] if is_alone else [MEAN]
    for each in found:
        for name in names:
            close(each[f"noisy/{name}"], noisy[name], name)
        assert np.isfinite(each[f"noisy/{VARIANCE}"]).all()
        np.testing.assert_array_equal(each[f"noisy/{VARIANCE}"], found[0][f"noisy/{VARIANCE}"])


def test_every_worker_draws_numbers_of_its_own_at_every_step(job: Job) -> None:
    contender, found = job
    drawn, squared = found[0]["noisy/drawn"], found[0]["noisy/squared"]
    assert len(set(drawn)) == STEPS
    variances = squared - drawn**2
    if contender.workers == 1:
        np.testing.assert_allclose(variances, 0, atol=1e-6)
    else:
        assert (variances > 1e-6).sum() >= STEPS - 1, variances


def test_streams_have_moved_on(job: Job) -> None:
    for each in job[1]:
        assert each["noisy/model['draws']['count'].value"] == STEPS
        np.testing.assert_array_equal(each["noisy/model['draws']['key'].value"], [0, 3])
