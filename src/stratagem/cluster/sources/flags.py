"""The flags of TensorFlow's distributed scripts: `--worker_hosts`, `--ps_hosts`, `--job_name`, `--task_index`."""

import re
from collections.abc import Sequence

from stratagem.cluster.cluster_spec import ClusterSpec, read_jobs
from stratagem.cluster.roles import JOBS, ClusterConfig, canonical_job, check_cluster, check_task
from stratagem.cluster.sources.numbers import read_integer
from stratagem.cluster.wording import Wording
from stratagem.errors import ClusterError

NAME = "flags"

_HOSTS = {f"{job}_hosts": job for job in JOBS}
_JOB_NAME, _TASK_INDEX, _TASK_ID = "job_name", "task_index", "task_id"
_KNOWN = {*_HOSTS, _JOB_NAME, _TASK_INDEX, _TASK_ID}
_FLAG = re.compile(r"--?([a-z_]+)(?:=(.*))?", re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-[0-9]+")
_WORDING = Wording(
    jobs="--{job}_hosts",
    job_name="--job_name",
    task_index="--task_index",
    example="--worker_hosts=a:2222,b:2222 --ps_hosts=c:2222 --job_name=worker --task_index=0",
)


def is_present(argv: Sequence[str]) -> bool:
    """Return whether the command line describes a cluster: has hosts, or names a task by job and index.

    A script may have a `--job_name` of its own, so that one alone means nothing.
    """
    flags = _read_flags(argv)
    if any(flags.get(flag, "") != "" for flag in _HOSTS):
        return True
    has_index = _TASK_INDEX in flags or _TASK_ID in flags
    return has_index and canonical_job(flags.get(_JOB_NAME) or "") in JOBS


def resolve(argv: Sequence[str]) -> ClusterConfig:
    """Read the cluster from the command line, which may hold any other flags as well.

    `--flag=value`, `--flag value` and both with a single dash are read; the last of several wins; what
    follows `--` is not a flag. A hosts flag with an empty value is ignored.
    """
    flags = _read_flags(argv)
    for flag, value in flags.items():
        if value is None:
            raise _WORDING.error(f"--{flag} has no value")
    hosts = {job: str(flags[flag]).split(",") for flag, job in _HOSTS.items() if flags.get(flag)}
    if not hosts:
        raise _WORDING.error(
            f"--{_JOB_NAME} and the index of a task are given, but no hosts: give --worker_hosts and, with "
            "parameter servers, --ps_hosts; or leave both out to use TF_CONFIG or run locally"
        )
    cluster = ClusterSpec(read_jobs(hosts, _WORDING))
    check_cluster(cluster, _WORDING)
    if not flags.get(_JOB_NAME):
        raise _WORDING.error("hosts are given, but no --job_name: say which task this process is")
    job_name = canonical_job(str(flags[_JOB_NAME]))
    task_index = _task_index(flags)
    check_task(cluster, job_name, task_index, _WORDING)
    return ClusterConfig(cluster, job_name, task_index, source=NAME)


def _task_index(flags: dict[str, str | None]) -> int:
    names = [flag for flag in (_TASK_INDEX, _TASK_ID) if flag in flags]
    if not names:
        raise _WORDING.error("hosts are given, but no --task_index: say which task this process is")
    try:
        indices = [read_integer(str(flags[flag]), f"--{flag}") for flag in names]
    except ClusterError as problem:
        raise _WORDING.error(str(problem)) from None
    if len(set(indices)) > 1:
        raise _WORDING.error(f"--task_index is {indices[0]} but --task_id is {indices[1]}; give one of them")
    return indices[0]


def _read_flags(argv: Sequence[str]) -> dict[str, str | None]:
    """Return the values of our flags; `None` for one without a value."""
    flags: dict[str, str | None] = {}
    position = 0
    while position < len(argv) and argv[position] != "--":
        flag = _FLAG.fullmatch(argv[position])
        position += 1
        if flag is None or flag[1] not in _KNOWN:
            continue
        value: str | None = flag[2]
        if value is None and position < len(argv) and _is_value(argv[position]):
            value = argv[position]
            position += 1
        flags[flag[1]] = value
    return flags


def _is_value(argument: str) -> bool:
    return not argument.startswith("-") or _NEGATIVE_NUMBER.fullmatch(argument) is not None
