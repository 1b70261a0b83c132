"""Kubeflow Trainer (version 2), whose process i runs in the pod `<job>-node-0-<i>.<job>`."""

import re
from collections.abc import Mapping

from stratagem.cluster.config import ClusterConfig
from stratagem.cluster.sources import coordinator

NAME = "Kubeflow Trainer"

_VARIABLES = coordinator.Variables(
    source=NAME,
    address="JAX_COORDINATOR_ADDRESS",
    port="JAX_COORDINATOR_PORT",
    count="JAX_NUM_PROCESSES",
    index="JAX_PROCESS_ID",
    first_host=re.compile(r"(.+-node-0-)0((?:\..+)?)"),
)


def is_present(environ: Mapping[str, str]) -> bool:
    """Whether the Trainer's variables are set."""
    return _VARIABLES.are_present(environ)


def resolve(environ: Mapping[str, str]) -> ClusterConfig:
    """Reads them: see `coordinator.resolve`."""
    return coordinator.resolve(environ, _VARIABLES)
