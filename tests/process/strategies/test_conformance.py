"""One suite for all synchronous strategies: the same parameters as one device on the same global batches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.nursery import Nursery
from proofs import FUNCTIONS, Proves, column

JOB = Path(__file__).with_name("conformance_job.py")
STEPS = 50
SECONDS = 240.0


@dataclass(frozen=True)
class Contender:
    """A strategy, and what it is started with."""

    expression: str
    replicas: int
    devices: int = 1
    workers: int = 1
    ps: int = 0


REFERENCE = Contender("sg.OneDeviceStrategy()", replicas=1)
CONTENDERS = {
    "Mirrored": Contender("sg.MirroredStrategy()", replicas=2, devices=2),
    "Mirrored, 4 devices": Contender("sg.MirroredStrategy()", replicas=4, devices=4),
    "CentralStorage": Contender("sg.CentralStorageStrategy()", replicas=2, devices=2),
    "MultiWorkerMirrored, shm": Contender(
        "sg.MultiWorkerMirroredStrategy(communication='shm')", replicas=2, workers=2
    ),
    "MultiWorkerMirrored, ring": Contender(
        "sg.MultiWorkerMirroredStrategy(communication='ring', timeout=20)", replicas=2, workers=2
    ),
    "MultiWorkerMirrored, 2 devices each": Contender(
        "sg.MultiWorkerMirroredStrategy()", replicas=4, devices=2, workers=2
    ),
    "MultiWorkerMirrored, 2 devices each, as on accelerators": Contender(
        "__import__('strategies_on_cpu').multi_worker_strategy()", replicas=4, devices=2, workers=2
    ),
    "ParameterServer, in step": Contender(
        "sg.ParameterServerStrategy(update=sg.Sync(), partitioner=sg.FixedShards(2))",
        replicas=2,
        workers=2,
        ps=2,
    ),
    "ParameterServer, one worker": Contender("sg.ParameterServerStrategy()", replicas=1, ps=1),
    "TPU": Contender("sg.TPUStrategy()", replicas=2, devices=2),
}
"""Later strategies join by adding a line."""
OPTIMIZERS = ["sgd", "momentum", "adam", "adamw", "accumulated"]
LEAVES = ["w1", "b1", "w2", "b2"]


def results(nursery: Nursery, contender: Contender, directory: Path) -> dict[str, Any]:
    path = directory / "results.npz"
    environ = {"CONFORMANCE_DEVICES": str(contender.devices)}
    nursery.run(
        directory,
        JOB,
        contender.expression,
        path,
        ps=contender.ps,
        workers=contender.workers,
        seconds=SECONDS,
        environ=environ,
    )
    with np.load(path) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def reference(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results(nursery, REFERENCE, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module", params=CONTENDERS, ids=str)
def pair(
    request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Contender, dict[str, Any]]:
    contender = CONTENDERS[request.param]
    return contender, results(nursery, contender, tmp_path_factory.mktemp("results"))


Pair = tuple[Contender, dict[str, Any]]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_parameters_and_averages(
    pair: Pair, reference: dict[str, Any], optimizer: str, proves: Proves
) -> None:
    contender, found = pair
    proves(FUNCTIONS, column(contender.expression))
    proves(FUNCTIONS, column(REFERENCE.expression))
    assert found[f"{optimizer}/step"] == STEPS
    for kind in ("params", "ema"):
        for leaf in LEAVES:
            close(found[f"{optimizer}/{kind}/{leaf}"], reference[f"{optimizer}/{kind}/{leaf}"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_metrics_at_every_step(pair: Pair, reference: dict[str, Any], optimizer: str) -> None:
    _, found = pair
    losses, some = found[f"{optimizer}/loss"], STEPS * 3 // 10
    close(losses, reference[f"{optimizer}/loss"])
    close(found[f"{optimizer}/accuracy"], reference[f"{optimizer}/accuracy"])
    assert np.median(losses[-some:]) < np.median(losses[:some])


def test_mixed_precision(pair: Pair, reference: dict[str, Any]) -> None:
    np.testing.assert_allclose(pair[1]["half/params"], reference["half/params"], atol=2e-3)


def test_random_numbers_come_from_the_seed(pair: Pair) -> None:
    _, found = pair
    np.testing.assert_array_equal(found["noisy/0/params"], found["noisy/1/params"])
    assert len(set(found["noisy/0/loss"])) == 12, "another mask at every step"


def test_user_error_shows_the_users_function(pair: Pair) -> None:
    assert pair[1]["error/frames"][-1] == "broken_loss"


def test_run_reduce_gather(pair: Pair) -> None:
    contender, found = pair
    assert found["replicas"] == contender.replicas
    assert found["run/count"] == contender.devices
    assert found["reduce/sum"] == 66
    assert found["reduce/mean"] == 66 / contender.replicas
    np.testing.assert_array_equal(found["reduce/axis/sum"], [66])
    np.testing.assert_array_equal(found["reduce/axis/mean"], [5.5])
    np.testing.assert_array_equal(found["gather"], np.arange(12).reshape(12, 1))
