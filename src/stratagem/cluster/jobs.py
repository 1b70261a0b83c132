"""Reads the mapping from jobs to addresses that describes a cluster, and refuses what cannot be one."""

import operator
import re
from collections.abc import Mapping, Sequence

from stratagem.cluster.address import Address
from stratagem.cluster.naming import Names
from stratagem.errors import ClusterError

_JOB_NAME = re.compile(r"[a-zA-Z][_a-zA-Z0-9]*")


def read_jobs(cluster: Mapping[str, object], names: Names) -> dict[str, dict[int, str]]:
    """Reads `{job: [addresses]}` or `{job: {index: address}}`.

    Args:
        cluster: the mapping; its parts may be anything, as they come from a user.
        names: what its parts are called in messages.

    Returns:
        Address by index by job, jobs and indices in ascending order.

    Raises:
        ClusterError: for a wrong job name, index or address, or an address given to two tasks.
    """
    jobs = {_read_job_name(job, names): _read_tasks(job, tasks, names) for job, tasks in cluster.items()}
    _refuse_shared_addresses(jobs, names)
    return {job: dict(sorted(jobs[job].items())) for job in sorted(jobs)}


def _read_job_name(job: object, names: Names) -> str:
    if isinstance(job, str) and _JOB_NAME.fullmatch(job):
        return job
    raise names.error(f"{job!r} is not a name for a job: use letters, digits and _, beginning with a letter")


def _read_tasks(job: str, tasks: object, names: Names) -> dict[int, str]:
    where = names.job(job)
    if isinstance(tasks, str):
        entries = [entry.strip() for entry in tasks.split(",")]
        raise names.error(f"{where} is the text {tasks!r}; write a list of addresses: {entries!r}")
    if isinstance(tasks, Mapping):
        indexed = [(_read_index(job, index, names), address) for index, address in tasks.items()]
    elif isinstance(tasks, Sequence):
        indexed = list(enumerate(tasks))
    else:
        raise names.error(
            f"{where} is {tasks!r}; write a list of addresses, or a mapping from task index to address"
        )
    return {index: _read_address(job, index, address, names) for index, address in indexed}


def _read_index(job: str, index: object, names: Names) -> int:
    where = f"an index in {names.job(job)}"
    if isinstance(index, bool | str) or not hasattr(index, "__index__"):
        raise names.error(
            f"{where} is {index!r}, of type {type(index).__name__}; indices are integers: 0, 1, 2, …"
        )
    number = operator.index(index)
    if number < 0:
        raise names.error(f"{where} is {number}; indices are integers from 0 up")
    return number


def _read_address(job: str, index: int, address: object, names: Names) -> str:
    where = names.task(job, index)
    if not isinstance(address, str):
        raise names.error(f"{where} is {address!r}; an address is text, as in 'node1:2222'")
    try:
        Address.parse(address)
    except ClusterError as problem:
        raise names.error(f"{where}: {problem}") from None
    return address


def _refuse_shared_addresses(jobs: Mapping[str, Mapping[int, str]], names: Names) -> None:
    owners: dict[Address, str] = {}
    for job, tasks in jobs.items():
        for index, text in tasks.items():
            address = Address.parse(text)
            if address.port == 0:
                continue
            where = names.task(job, index)
            owner = owners.setdefault(Address(address.host.casefold(), address.port), where)
            if owner != where:
                raise names.error(f"{owner} and {where} are both {text!r}; every task needs its own address")
