"""Slurm: the tasks of a step that `srun` started become workers."""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from stratagem.cluster.address import Address
from stratagem.cluster.config import ClusterConfig
from stratagem.cluster.roles import WORKER
from stratagem.cluster.sources.base_port import BASE_PORT
from stratagem.cluster.sources.integers import read_variable
from stratagem.cluster.sources.open_mpi import SIZE as MPI_SIZE
from stratagem.cluster.sources.slurm_lists import expand_counts, expand_nodes
from stratagem.cluster.spec import ClusterSpec
from stratagem.errors import ClusterError

NAME = "Slurm"

_NODES, _COUNTS, _RANK = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID"
_TOTAL, _NODE_INDEX, _LOCAL_RANK = "SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_LOCALID"
_ONE_TASK = re.compile(r"1(\(x1\))?")
_Entry = TypeVar("_Entry")


def is_present(environ: Mapping[str, str]) -> bool:
    """Whether this is a task of a step of several.

    A batch script has no step, and an interactive shell is a step of one: neither is a cluster. `mpirun`
    inside Slurm starts its daemons as a step, which the ranks inherit: then Open MPI has the say.
    """
    if not all(environ.get(name) for name in (_NODES, _COUNTS, _RANK)):
        return False
    if MPI_SIZE in environ and environ.get(_TOTAL, environ[MPI_SIZE]) != environ[MPI_SIZE]:
        return False
    return _ONE_TASK.fullmatch(environ[_COUNTS]) is None


def resolve(environ: Mapping[str, str]) -> ClusterConfig:
    """Task i of the step is worker i, at its node's name and port `BASE_PORT` + its rank on that node.

    Ranks must fill one node after the other (`srun --distribution=block`, Slurm's default).
    """
    nodes = _expand(environ, _NODES, expand_nodes)
    counts = _expand(environ, _COUNTS, expand_counts)
    if len(nodes) != len(counts):
        raise ClusterError(
            f"{_NODES} is {environ[_NODES]!r}, {len(nodes)} nodes, but {_COUNTS} is {environ[_COUNTS]!r}, "
            f"for {len(counts)} nodes; inside a step that srun started they agree"
        )
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    rank = read_variable(environ, _RANK)
    if rank >= len(places):
        raise ClusterError(
            f"{_RANK} is {rank}, but {_COUNTS} is {environ[_COUNTS]!r}, {len(places)} tasks in all"
        )
    _check_place(environ, rank, places[rank])
    try:
        workers = [str(Address(nodes[node], BASE_PORT + local)) for node, local in places]
    except ClusterError as problem:
        raise ClusterError(f"{_NODES} is {environ[_NODES]!r}: {problem}") from None
    return ClusterConfig(ClusterSpec({WORKER: workers}), WORKER, rank, source=NAME)


def _expand(environ: Mapping[str, str], name: str, expand: Callable[[str], list[_Entry]]) -> list[_Entry]:
    try:
        return expand(environ[name])
    except ClusterError as problem:
        raise ClusterError(f"{name}: {problem}") from None


def _check_place(environ: Mapping[str, str], rank: int, place: tuple[int, int]) -> None:
    if _NODE_INDEX not in environ or _LOCAL_RANK not in environ:
        return
    actual = read_variable(environ, _NODE_INDEX), read_variable(environ, _LOCAL_RANK)
    if actual != place:
        raise ClusterError(
            f"task {rank} of the Slurm step is number {actual[1]} on node {actual[0]}, not number {place[1]} on "
            f"node {place[0]}: tasks must fill one node after the other; use srun --distribution=block"
        )
