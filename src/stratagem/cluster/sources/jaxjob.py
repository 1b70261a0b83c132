"""Kubeflow's JAXJob, whose worker i is reached at the service `<job>-worker-<i>`."""

import re
from collections.abc import Mapping

from stratagem.cluster.config import ClusterConfig
from stratagem.cluster.sources import coordinator

NAME = "Kubeflow JAXJob"

_VARIABLES = coordinator.Variables(
    source=NAME,
    address="COORDINATOR_ADDRESS",
    port="COORDINATOR_PORT",
    count="NUM_PROCESSES",
    index="PROCESS_ID",
    first_host=re.compile(r"(.+-worker-)0((?:\..+)?)"),
)


def is_present(environ: Mapping[str, str]) -> bool:
    """Whether a JAXJob's variables are set."""
    return _VARIABLES.are_present(environ)


def resolve(environ: Mapping[str, str]) -> ClusterConfig:
    """Reads them: see `coordinator.resolve`."""
    return coordinator.resolve(environ, _VARIABLES)
