"""Keras models under all strategies: the same as plain Keras on one device with the same global batches."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from unit.keras.cases import ALIKE, LOOSE, Found, compare, run_plainly

JOB = Path(__file__).with_name("keras_job.py")


@dataclass(frozen=True)
class Contender:
    """A strategy, what it is started with, and what of it is asked."""

    expression: str
    devices: int = 1
    workers: int = 1
    ps: int = 0
    cases: tuple[str, ...] = (*ALIKE, *LOOSE)

    @property
    def command(self) -> list[str]:
        if self.workers == 1 and self.ps == 0:
            return [sys.executable, str(JOB)]
        numbers = ["--ps", str(self.ps), "--workers", str(self.workers)]
        return [sys.executable, "-m", "stratagem", "run", *numbers, str(JOB)]


CONTENDERS = {
    "Mirrored": Contender("sg.MirroredStrategy()", devices=2),
    "CentralStorage": Contender(
        "sg.CentralStorageStrategy()",
        devices=2,
        cases=("everyday", "own_step", "averaged", "noisy", "scaled"),
    ),
    "TPU": Contender(
        "__import__('strategies_on_cpu').tpu_strategy()", devices=2, cases=("outputs", "called_back")
    ),
    "MultiWorkerMirrored": Contender("sg.MultiWorkerMirroredStrategy(communication='shm')", workers=2),
    "MultiWorkerMirrored, 3 workers of 2 devices": Contender(
        "sg.MultiWorkerMirroredStrategy()", devices=2, workers=3, cases=("outputs", "few", "untrained")
    ),
    "ParameterServer, in step": Contender(
        "sg.ParameterServerStrategy(update=sg.Sync())", workers=2, ps=2, cases=(*ALIKE, *LOOSE, "meddled")
    ),
    "ParameterServer, one worker": Contender(
        "sg.ParameterServerStrategy()",
        ps=1,
        cases=("everyday", "averaged", "called_back", "backed_up", "failing"),
    ),
}


@dataclass(frozen=True)
class Job:
    """What a strategy has come to: each worker's results, and what they have said."""

    contender: Contender
    found: list[Found]
    said: str
    directory: Path

    def of(self, case: str) -> list[Found]:
        """Each worker's results of a case."""
        if case not in self.contender.cases:
            pytest.skip("asked of other strategies")
        of_case = [
            {name.partition("/")[2]: value for name, value in each.items() if name.startswith(f"{case}/")}
            for each in self.found
        ]
        for each in of_case:
            assert "failed" not in each, each["failed"]
        return of_case


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where compiled programs are kept: compiling is most of what these jobs cost, and all compile much the same."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }


@pytest.fixture(scope="module", params=CONTENDERS, ids=str)
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, compiled: dict[str, str]
) -> Job:
    """A strategy, and what has become of it."""
    contender = CONTENDERS[request.param]
    directory = tmp_path_factory.mktemp("keras")
    environ = {"KERAS_DEVICES": str(contender.devices), "PYTHONPATH": str(JOB.parents[2]), **compiled}
    done = subprocess.run(
        [*contender.command, contender.expression, str(directory), *contender.cases],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = []
    for index in range(contender.workers):
        with np.load(directory / f"{index}.npz") as stored:
            found.append(dict(stored))
    return Job(contender, found, done.stdout + done.stderr, directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """What a case comes to in plain Keras."""
    return cache(lambda case: run_plainly(case, tmp_path_factory.mktemp("plain")))


Plain = Callable[[str], Found]


@pytest.mark.parametrize("case", [*ALIKE, "meddled"])
def test_as_plain_keras_on_every_worker(job: Job, plain: Plain, case: str) -> None:
    for found in job.of(case):
        compare(found, plain(case))


def test_statistics_and_random_numbers_are_those_of_one_process_or_each_workers_own(
    job: Job, plain: Plain
) -> None:
    found = job.of("noisy")
    if job.contender.workers == 1:
        compare(found[0], plain("noisy"))
    for each in found:
        assert sorted(each) == sorted(plain("noisy"))
        assert all(np.isfinite(value).all() for value in each.values())
        for name, value in each.items():
            if "weights/8" not in name:  # the seed of the dropout, which is each worker's own
                np.testing.assert_array_equal(value, found[0][name], err_msg=name)


def test_half_precision(job: Job, plain: Plain) -> None:
    expected = plain("scaled")
    # Each worker that finds a gradient not to be finite leaves it out and goes on: servers make a step of it.
    is_served = job.contender.ps > 0
    for found in job.of("scaled"):
        names = [name for name in expected if "weights" in name or not is_served]
        compare(
            {name: found[name] for name in names},
            {name: expected[name] for name in names},
            1e-2 if is_served else 1e-4,
        )


def test_only_the_chief_writes(job: Job) -> None:
    job.of("loaded")
    written = [
        sorted(path.name for path in (job.directory / "loaded").glob(f"worker-{index}/*"))
        for index in range(job.contender.workers)
    ]
    assert "log.csv" in written[0]
    assert sum(name.endswith(".weights.h5") for name in written[0]) == 1
    assert not any(written[1:])
    assert job.said.count("Epoch 1/1") == 1


def test_who_is_not_chief_is_told_once_that_it_has_no_say(job: Job) -> None:
    job.of("meddled")
    assert job.said.count("has changed variables or hyperparameters of meddled, which has no effect") == 1
