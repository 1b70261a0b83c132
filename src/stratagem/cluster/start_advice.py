"""Advice in messages: the command or settings that start a job of another shape, in the words of this one's source."""

import json
from collections.abc import Mapping

from stratagem.cluster.roles import CHIEF, PS, WORKER, ClusterConfig
from stratagem.cluster.sources import open_mpi, slurm, tf_config
from stratagem.cluster.sources.kubeflow import JAXJOB, TRAINER
from stratagem.environment import run_id

_MOST_SPELLED_OUT = 2


def how_to_start(
    config: ClusterConfig | None, *, ps: int = 0, workers: int | None = None, single_client: bool = False
) -> str:
    """Return the command or the settings that start a job, in the words of the source of a cluster.

    Args:
        config: The cluster that this process is in now, or `None`.
        ps: How many parameter servers it should have.
        workers: How many workers; by default as many as train now, or two.
        single_client: Whether the script should run once, as the chief of workers that only serve.

    Returns:
        What to put after "start it with".

    Example:
        >>> how_to_start(None, ps=1)
        '`stratagem run --ps 1 --workers 2 SCRIPT`'
    """
    count = workers or (_training(config) if config is not None else 2)
    jobs = {
        job: number for job, number in {PS: ps, WORKER: count, CHIEF: int(single_client)}.items() if number
    }
    servers = f"--ps {ps} " if ps else ""
    shape = f"{'--single-client ' if single_client else ''}{servers}--workers {count} SCRIPT"
    source = None if config is None else config.source
    if source is None or (source == tf_config.NAME and run_id() is not None):
        return f"`stratagem run {shape}`"
    if source == slurm.NAME:
        is_plain = jobs.keys() == {WORKER}
        return f"`srun --ntasks={count} python SCRIPT`" if is_plain else f"`stratagem emit slurm {shape}`"
    if source == open_mpi.NAME:
        return _mpirun(jobs)
    if source in (JAXJOB.name, TRAINER.name):
        return f"`stratagem emit k8s --kind tfjob {shape if ps else f'--ps 0 {shape}'}`"
    if source == tf_config.NAME:
        cluster = {job: _hosts(number) for job, number in jobs.items()}
        return f'{{"cluster": {json.dumps(cluster, ensure_ascii=False)}, …}} in TF_CONFIG, for every task'
    return f"{_flags(jobs)} for every task, and --job_name and --task_index of its own"


def _training(config: ClusterConfig) -> int:
    counted = sum(config.cluster.num_tasks(job) for job in (CHIEF, WORKER) if job in config.cluster.jobs)
    return config.announced_workers or max(1, counted)


def _hosts(number: int) -> list[str]:
    return ["HOST:PORT"] * number if number <= _MOST_SPELLED_OUT else ["HOST:PORT", "…"]


def _flags(jobs: Mapping[str, int]) -> str:
    return " ".join(f"--{job}_hosts={','.join(_hosts(number))}" for job, number in jobs.items())


def _mpirun(jobs: Mapping[str, int]) -> str:
    """Return the `mpirun` command. Open MPI makes every rank a worker; other roles need flags for each program."""
    if jobs.keys() == {WORKER}:
        return f"`mpirun -n {jobs[WORKER]} python SCRIPT`"
    programs = [
        "…"
        if index == _MOST_SPELLED_OUT
        else f"-n 1 python SCRIPT HOSTS --job_name={job} --task_index={index}"
        for job, number in jobs.items()
        for index in range(min(number, _MOST_SPELLED_OUT + 1))
    ]
    return f"`mpirun {' : '.join(programs)}`, where HOSTS is {_flags(jobs)}"
