"""Slurm: the tasks of a step that `srun` started become workers."""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from stratagem.cluster.address import Address
from stratagem.cluster.cluster_spec import ClusterSpec
from stratagem.cluster.roles import WORKER, ClusterConfig
from stratagem.cluster.sources.numbers import BASE_PORT, read_variable
from stratagem.cluster.sources.open_mpi import SIZE as MPI_SIZE
from stratagem.errors import ClusterError

NAME = "Slurm"

_NODES, _COUNTS, _RANK = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID"
_TOTAL, _NODE_INDEX, _LOCAL_RANK = "SLURM_STEP_NUM_TASKS", "SLURM_NODEID", "SLURM_LOCALID"
_ONE_TASK = re.compile(r"1(\(x1\))?")

_MOST = 65536  # what Slurm itself allows in one expression
_NODE = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_Entry = TypeVar("_Entry")


def is_present(environ: Mapping[str, str]) -> bool:
    """Return whether this is a task of a step of several.

    A batch script has no step, and an interactive shell is a step of one: neither is a cluster. `mpirun`
    inside Slurm starts its daemons as a step, which the ranks inherit: then Open MPI decides.
    """
    if not all(environ.get(name) for name in (_NODES, _COUNTS, _RANK)):
        return False
    if MPI_SIZE in environ and environ.get(_TOTAL, environ[MPI_SIZE]) != environ[MPI_SIZE]:
        return False
    return _ONE_TASK.fullmatch(environ[_COUNTS]) is None


def resolve(environ: Mapping[str, str]) -> ClusterConfig:
    """Make task i of the step worker i, at its node's name and port `BASE_PORT` + its rank on that node.

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


def expand_nodes(text: str) -> list[str]:
    """Return the node names of a list in Slurm's shorthand, in order.

    A name may have several bracketed lists of numbers and ranges; numbers keep their leading zeros.

    Example:
        >>> expand_nodes("n[1-2,05-07],m5")
        ['n1', 'n2', 'n05', 'n06', 'n07', 'm5']
        >>> expand_nodes("r[0-1]n[1,2]")
        ['r0n1', 'r0n2', 'r1n1', 'r1n2']
    """
    if not re.fullmatch(rf"{_NODE.pattern}(?:,{_NODE.pattern})*", text):
        raise _wrong_nodes(text)
    names: list[str] = []
    for node in _NODE.findall(text):
        # Literal text at even places, the insides of brackets at odd ones.
        parts = [
            _expand_ranges(part, text) if place % 2 else [part]
            for place, part in enumerate(_BRACKETS.split(node))
        ]
        names += itertools.islice(map("".join, itertools.product(*parts)), _MOST + 1 - len(names))
        if len(names) > _MOST:
            raise ClusterError(f"{text!r} stands for more than {_MOST} nodes")
    return names


def expand_counts(text: str) -> list[int]:
    """Return the counts of a list in Slurm's shorthand, one per node, in order.

    Example:
        >>> expand_counts("3(x2),2")
        [3, 3, 2]
    """
    counts: list[int] = []
    for part in text.split(","):
        count = _COUNT.fullmatch(part)
        if count is None or int(count[2] or 1) > _MOST:
            raise ClusterError(f"{text!r} is not a list of counts as Slurm writes them, as in '3(x2),2'")
        counts += [int(count[1])] * int(count[2] or 1)
        if sum(counts) > _MOST:
            raise ClusterError(f"{text!r} stands for more than {_MOST} tasks")
    return counts


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            raise _wrong_nodes(text)
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if not first <= last <= first + _MOST:
            raise _wrong_nodes(text)
        numbers += [str(number).zfill(len(bounds[1])) for number in range(first, last + 1)]
    return numbers


def _wrong_nodes(text: str) -> ClusterError:
    return ClusterError(f"{text!r} is not a list of nodes as Slurm writes them, as in 'n[1-2,05-07],m5'")
