"""What is saved under one strategy is restored under every other, whatever each is made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.nursery import Nursery
from drills.quick_compiling import XLA_FLAGS
from process.checkpoints.matrix_job import FIRST_STEP, STRATEGIES

JOB = Path(__file__).with_name("matrix_job.py")
TWO_DEVICES = {"XLA_FLAGS": f"--xla_force_host_platform_device_count=2 {XLA_FLAGS}"}


@pytest.fixture(scope="module")
def saved(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all strategies have saved, and restored what the others saved."""
    place = tmp_path_factory.mktemp("matrix")
    local, workers, server, servers = (tmp_path_factory.mktemp("job") for _ in range(4))
    with (
        nursery.job(local, 0, 1) as local_job,
        nursery.job(workers, 0, 2) as workers_job,
        nursery.job(server, 1, 2) as server_job,
        nursery.job(servers, 2, 2) as servers_job,
    ):
        tasks = [local_job.start("worker", 0, JOB, place, "one", "mirrored", "central", **TWO_DEVICES)]
        tasks += [server_job.serve(0), *(servers_job.serve(index) for index in range(2))]
        for index in range(2):
            tasks.append(workers_job.start("worker", index, JOB, place, "workers"))
            tasks.append(server_job.start("worker", index, JOB, place, "server"))
            tasks.append(servers_job.start("worker", index, JOB, place, "servers"))
        for task in tasks:
            task.ends_well()
    return place


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as stored:
        return dict(stored)


@pytest.mark.parametrize("other", STRATEGIES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_restored_as_it_was_saved(saved: Path, name: str, other: str) -> None:
    expected, found = arrays(saved / f"{name}.npz"), arrays(saved / f"{name}-{other}.npz")
    assert expected["['step']"] == FIRST_STEP + list(STRATEGIES).index(name)
    assert len(expected) == 10, "w and b: parameters, two moments, averages; a count and the step"
    assert expected.keys() == found.keys()
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key, strict=True)


@pytest.mark.parametrize("other", STRATEGIES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_trains_on_as_it_would_have(saved: Path, name: str, other: str) -> None:
    expected = arrays(saved / f"{name}-{name}-trained.npz")
    found = arrays(saved / f"{name}-{other}-trained.npz")
    assert found["['step']"] == expected["['step']"] == FIRST_STEP + list(STRATEGIES).index(name) + 1
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-7, err_msg=key)


@pytest.mark.parametrize(
    ("name", "shards"),
    [
        ("one", {"chief"}),
        ("workers", {"chief"}),
        ("server", {"chief", "ps-0"}),
        ("servers", {"chief", "ps-0", "ps-1"}),
    ],
)
def test_servers_write_their_own_shards(saved: Path, name: str, shards: set[str]) -> None:
    (cut,) = (saved / name).iterdir()
    assert {file.stem for file in cut.glob("*.safetensors")} == shards
