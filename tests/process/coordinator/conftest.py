"""Workers that may import a module of datasets, and a client of theirs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratagem as sg
from process.coordinator.served import ImportingCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ImportingCluster]:
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    served = ImportingCluster({"ps": 2, "worker": 2}, allowed=["coordinator_data"], PYTHONPATH=path)
    with served:
        yield served


@pytest.fixture
def session(cluster: ImportingCluster) -> Iterator[sg.Session]:
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as opened:
        opened.devices()  # waits for every task
        yield opened


@pytest.fixture
def coordinator(session: sg.Session) -> Iterator[sg.ClusterCoordinator]:
    made = sg.ClusterCoordinator(session)
    yield made
    made.close()
