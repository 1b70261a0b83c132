"""Flax models under all strategies: the same as plain Flax on one device with the same global batches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.nursery import Nursery
from proofs import FLAX, Proves, column

SCRIPT = Path(__file__).with_name("job.py")
STEPS = 6
SECONDS = 240.0
MEAN = "noisy/model['norm']['mean'].value"
VARIANCE = "noisy/model['norm']['var'].value"

Results = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """Strategies that can be asked by the same processes, one after the other."""

    strategies: dict[str, str]
    devices: int = 1
    workers: int = 1
    ps: int = 0
    cases: str = "dense,noisy"

    @property
    def is_one_process(self) -> bool:
        return self.workers == 1 and self.ps == 0

    def run(self, nursery: Nursery, directory: Path) -> dict[str, list[Results]]:
        """For each strategy, what each of its workers has at the end."""
        path = directory / "results"
        arguments = [path, self.cases, *self.strategies.values()]
        nursery.run(
            directory,
            SCRIPT,
            *arguments,
            ps=self.ps,
            workers=self.workers,
            seconds=SECONDS,
            environ={"FLAX_DEVICES": str(self.devices)},
        )
        return {
            name: [dict(np.load(f"{path}-{number}-{index}.npz")) for index in range(self.workers)]
            for number, name in enumerate(self.strategies)
        }


ONE_PROCESS = Job(
    {
        "plain": "plain",
        "Mirrored": "sg.MirroredStrategy()",
        "CentralStorage": "sg.CentralStorageStrategy()",
        "OneDevice": "sg.OneDeviceStrategy()",
        "TPU": "sg.TPUStrategy()",
    },
    devices=2,
)
WORKERS = Job(
    {"MultiWorkerMirrored": "sg.MultiWorkerMirroredStrategy(communication='ring')"}, devices=2, workers=2
)
IN_STEP = Job({"Sync": "sg.ParameterServerStrategy(update=sg.Sync())"}, workers=2, ps=2)
ONE_WORKER = Job({"Async": "sg.ParameterServerStrategy()"}, ps=1, cases="dense")
BOUNDED = Job(
    {"BoundedStaleness": "sg.ParameterServerStrategy(update=sg.BoundedStaleness(2))"}, ps=1, cases="dense"
)

ALL = [
    (job, name)
    for job in (ONE_PROCESS, WORKERS, IN_STEP, ONE_WORKER, BOUNDED)
    for name in job.strategies
    if name != "plain"
]
WITH_NOISE = [(job, name) for job, name in ALL if "noisy" in job.cases]


@pytest.fixture(scope="module")
def results(
    nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Job, str], list[Results]]:
    """What each worker of a strategy has; every job runs once."""
    ran: dict[int, dict[str, list[Results]]] = {}

    def of(job: Job, name: str) -> list[Results]:
        if id(job) not in ran:
            ran[id(job)] = job.run(nursery, tmp_path_factory.mktemp("flax"))
        return ran[id(job)][name]

    return of


Ask = Callable[[Job, str], list[Results]]


def close(found: Results, expected: Results, name: str) -> None:
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def named(argument: Any) -> str | None:
    return argument if isinstance(argument, str) else ""


@pytest.mark.parametrize(("job", "name"), ALL, ids=named)
def test_parameters_optimizer_metrics_and_predictions_are_those_of_plain_flax(
    results: Ask, job: Job, name: str, proves: Proves
) -> None:
    proves(FLAX, column(job.strategies[name]))
    (plain,) = results(ONE_PROCESS, "plain")
    for found in results(job, name):
        assert found["dense/step"] == STEPS
        for each in plain:
            if each.startswith("dense/"):
                close(found, plain, each)


@pytest.mark.parametrize(("job", "name"), WITH_NOISE, ids=named)
def test_one_process_is_plain_flax_and_several_have_the_mean_of_their_statistics(
    results: Ask, job: Job, name: str
) -> None:
    (plain,) = results(ONE_PROCESS, "plain")
    workers = results(job, name)
    compared = [each for each in plain if each.startswith("noisy/") and "optimizer" not in each]
    for found in workers:
        for each in compared if job.is_one_process else [MEAN]:
            close(found, plain, each)
        assert np.isfinite(found[VARIANCE]).all()
        np.testing.assert_array_equal(found[VARIANCE], workers[0][VARIANCE])


@pytest.mark.parametrize(("job", "name"), WITH_NOISE, ids=named)
def test_every_worker_draws_numbers_of_its_own_at_every_step(results: Ask, job: Job, name: str) -> None:
    found, *_ = workers = results(job, name)
    assert len(set(found["noisy/drawn"])) == STEPS
    variances = found["noisy/squared"] - found["noisy/drawn"] ** 2
    if job.workers == 1:
        np.testing.assert_allclose(variances, 0, atol=1e-6)
    else:
        assert (variances > 1e-6).all(), variances
    for each in workers:
        assert each["noisy/model['draws']['count'].value"] == STEPS
        np.testing.assert_array_equal(each["noisy/model['draws']['key'].value"], [0, 3])
