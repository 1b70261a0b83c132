"""`sg.keras.Embedding` trains as `keras.layers.Embedding` does, with its rows here or on parameter servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.nursery import Nursery

JOB = Path(__file__).with_name("embedding_job.py")
SGD, ADAGRAD = "keras.optimizers.SGD(0.2)", "keras.optimizers.Adagrad(0.2)"
EPOCHS = 3
ALONE = [
    (strategy, optimizer) for strategy in ("None", "sg.OneDeviceStrategy()") for optimizer in (SGD, ADAGRAD)
]
Found = dict[str, Any]
Runner = Callable[..., list[list[Found]]]


@pytest.fixture(scope="module")
def trained(keras_nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """For each strategy and optimizer what each worker has found."""

    def run(*contenders: tuple[str, str], ps: int = 0, workers: int = 1) -> list[list[Found]]:
        directory = tmp_path_factory.mktemp("embedding")
        asked = [each for contender in contenders for each in contender]
        keras_nursery.run(directory, JOB, directory, *asked, ps=ps, workers=workers, seconds=240.0)

        def found(place: int, index: int) -> Found:
            with np.load(directory / f"{place}-{index}.npz") as stored:
                return dict(stored)

        return [[found(place, index) for index in range(workers)] for place in range(len(contenders))]

    return run


@pytest.fixture(scope="module")
def alone(trained: Runner) -> dict[tuple[str, str], Found]:
    """What one process has found."""
    return {contender: found for contender, (found,) in zip(ALONE, trained(*ALONE), strict=True)}


def check(found: Found, expected: Found) -> None:
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if name == "asked":
            continue
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", [SGD, ADAGRAD])
def test_one_device_trains_as_the_dense_layer_does(
    alone: dict[tuple[str, str], Found], optimizer: str
) -> None:
    check(alone["sg.OneDeviceStrategy()", optimizer], alone["None", optimizer])


@pytest.mark.parametrize(("tables_above", "ps"), [(None, 2), (0, 1)])
def test_workers_in_step_train_as_one_process_does(
    trained: Runner, alone: dict[tuple[str, str], Found], tables_above: int | None, ps: int
) -> None:
    strategy = f"sg.ParameterServerStrategy(update=sg.Sync(), tables_above={tables_above})"
    (each,) = trained((strategy, ADAGRAD), ps=ps, workers=2)
    for found in each:
        check(found, alone["None", ADAGRAD])
        assert found["asked"] == EPOCHS, "the rows of all batches of an epoch but the first come with a push"


@pytest.mark.parametrize("update", ["sg.Async()", "sg.Async(overlap=True)", "sg.BoundedStaleness(1)"])
def test_workers_in_turns_train_the_same_rows(
    trained: Runner, alone: dict[tuple[str, str], Found], update: str
) -> None:
    expected = alone["None", ADAGRAD]
    (each,) = trained((f"sg.ParameterServerStrategy(update={update})", ADAGRAD), ps=1, workers=2)
    for found in each:
        assert np.isfinite(found["loss"]).all()
        assert found["evaluated"][0] < expected["loss"][0]
    assert max(found["count"] for found in each) == expected["count"]
