"""One suite for all synchronous strategies: the same parameters as one device on the same global batches."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
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
    "MultiWorkerMirrored, ring, 4 devices each": Contender(
        "sg.MultiWorkerMirroredStrategy(communication='ring', timeout=20)", replicas=8, devices=4, workers=2
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
UNEVEN, *OTHERS = ["adamw", "sgd", "momentum", "adam", "accumulated"]
PAIRS = {name: (UNEVEN, other) for name, other in zip(CONTENDERS, cycle(OTHERS))}
"""The optimizers of each strategy: what the one does to the other is proved by a few pairs. All have uneven batches."""
LEAVES = ["w1", "b1", "w2", "b2"]


def results(
    nursery: Nursery, contender: Contender, optimizers: Iterable[str], directory: Path
) -> dict[str, Any]:
    path = directory / "results.npz"
    environ = {"CONFORMANCE_DEVICES": str(contender.devices)}
    nursery.run(
        directory,
        JOB,
        contender.expression,
        path,
        *optimizers,
        ps=contender.ps,
        workers=contender.workers,
        seconds=SECONDS,
        environ=environ,
    )
    with np.load(path) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def reference(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return results(nursery, REFERENCE, [UNEVEN, *OTHERS], tmp_path_factory.mktemp("reference"))


@dataclass(frozen=True)
class Run:
    """What a strategy was asked, and what came of it."""

    contender: Contender
    optimizers: tuple[str, ...]
    found: dict[str, Any]


@pytest.fixture(scope="module", params=CONTENDERS, ids=str)
def run(request: pytest.FixtureRequest, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    contender, optimizers = CONTENDERS[request.param], PAIRS[request.param]
    return Run(
        contender, optimizers, results(nursery, contender, optimizers, tmp_path_factory.mktemp("results"))
    )


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_same_parameters_and_averages(run: Run, reference: dict[str, Any], proves: Proves) -> None:
    proves(FUNCTIONS, column(run.contender.expression))
    proves(FUNCTIONS, column(REFERENCE.expression))
    for optimizer in run.optimizers:
        assert run.found[f"{optimizer}/step"] == STEPS
        for name in (f"{optimizer}/{kind}/{leaf}" for kind in ("params", "ema") for leaf in LEAVES):
            close(run.found[name], reference[name])


def test_same_metrics_at_every_step(run: Run, reference: dict[str, Any]) -> None:
    some = STEPS * 3 // 10
    for optimizer in run.optimizers:
        losses = run.found[f"{optimizer}/loss"]
        close(losses, reference[f"{optimizer}/loss"])
        close(run.found[f"{optimizer}/accuracy"], reference[f"{optimizer}/accuracy"])
        assert np.median(losses[-some:]) < np.median(losses[:some])


def test_mixed_precision(run: Run, reference: dict[str, Any]) -> None:
    np.testing.assert_allclose(run.found["half/params"], reference["half/params"], atol=2e-3)


def test_random_numbers_come_from_the_seed(run: Run) -> None:
    found = run.found
    np.testing.assert_array_equal(found["noisy/0/params"], found["noisy/1/params"])
    assert len(set(found["noisy/0/loss"])) == 12, "another mask at every step"


def test_user_error_shows_the_users_function(run: Run) -> None:
    assert run.found["error/frames"][-1] == "broken_loss"


def test_run_reduce_gather(run: Run) -> None:
    contender, found = run.contender, run.found
    assert found["replicas"] == contender.replicas
    assert found["run/count"] == contender.devices
    assert found["reduce/sum"] == 276
    assert found["reduce/mean"] == 276 / contender.replicas
    np.testing.assert_array_equal(found["reduce/axis/sum"], [276])
    np.testing.assert_array_equal(found["reduce/axis/mean"], [11.5])
    np.testing.assert_array_equal(found["gather"], np.arange(24).reshape(24, 1))
