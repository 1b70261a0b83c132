"""Workers that may import a module of datasets, and a client of theirs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratagem as sg
from drills.cluster import ServedCluster
from drills.nursery import Nursery
from stratagem.tools.launch.job_shape import SERVE


@pytest.fixture(scope="module")
def cluster(nursery: Nursery) -> Iterator[ServedCluster]:
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    commands = {"worker": [*SERVE, "--allow-import", "coordinator_data"]}
    with ServedCluster({"ps": 2, "worker": 2}, commands, nursery=nursery, PYTHONPATH=path) as served:
        yield served


@pytest.fixture
def session(cluster: ServedCluster) -> Iterator[sg.Session]:
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as opened:
        opened.devices()  # waits for every task
        yield opened


@pytest.fixture
def coordinator(session: sg.Session) -> Iterator[sg.ClusterCoordinator]:
    made = sg.ClusterCoordinator(session)
    yield made
    made.close()
