"""TF_CONFIG: the JSON that TensorFlow, its launchers and Kubeflow's TFJob describe a task with."""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import replace

from stratagem.cluster.cluster_spec import ClusterSpec, read_jobs
from stratagem.cluster.roles import (
    JOBS,
    PS,
    ClusterConfig,
    canonical_job,
    check_cluster,
    check_task,
    unknown_job,
)
from stratagem.cluster.wording import Wording

NAME = "TF_CONFIG"

_CLUSTER, _SPARSE, _TASK = "cluster", "sparseCluster", "task"
_NEARBY = 20
_WORDING = Wording(
    jobs='TF_CONFIG["cluster"]["{job}"]',
    job_name='TF_CONFIG["task"]["type"]',
    task_index='TF_CONFIG["task"]["index"]',
    example="""TF_CONFIG='{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'""",
)


def is_present(environ: Mapping[str, str]) -> bool:
    """Return whether TF_CONFIG is set to anything but blanks."""
    return bool(environ.get(NAME, "").strip())


def resolve(environ: Mapping[str, str]) -> ClusterConfig | None:
    """Read TF_CONFIG. Return `None` if it names no cluster, which means a local run.

    A job is a list of addresses or, sparse, a mapping from index to address, whose keys JSON makes text. The
    job `master` is read as chief. The task's index may be a number or its text. Keys other than `cluster` and `task`
    (`environment`, `rpc_layer`, `session_master`, …) are ignored.

    TFJob with dynamic workers writes `sparseCluster` instead of `cluster`: a worker sees itself and the
    parameter servers, a parameter server sees itself alone, as a list of one whatever its index; jobs that
    a task does not see are empty there.
    """
    content = _load(environ[NAME])
    key = _SPARSE if _SPARSE in content and _CLUSTER not in content else _CLUSTER
    if key not in content:
        _refuse_misplaced(content)
        return None
    jobs, wording = _read_job_names(content[key], key)
    if not jobs:
        return None
    job_name, task_index = _read_task(content, wording)
    visible = _visible_jobs(jobs, job_name, task_index, is_sparse=key == _SPARSE)
    indexed = {job: _integer_keys(job, tasks, wording) for job, tasks in visible.items()}
    cluster = ClusterSpec(read_jobs(indexed, wording))
    check_cluster(cluster, wording)
    check_task(cluster, job_name, task_index, wording)
    return ClusterConfig(cluster, job_name, task_index, source=NAME)


def _load(text: str) -> dict[str, object]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        before, after = text[: error.pos][-_NEARBY:], text[error.pos :][:_NEARBY]
        place = f"before {after!r}" if after else "at its end"
        quotes = "; JSON wants double quotes" if "'" in before + after else ""
        raise _WORDING.error(
            f"TF_CONFIG is not JSON: {error.msg} at character {error.pos}, after {before!r}, {place}{quotes}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise _WORDING.error(f"TF_CONFIG cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise _WORDING.error(
            f"TF_CONFIG is {_short(content)}; it must be an object with the keys cluster and task"
        )
    return content


def _refuse_misplaced(content: Mapping[str, object]) -> None:
    """Refuse a TF_CONFIG without a cluster that seems to be meant to have one."""
    for key in content:
        if canonical_job(key) in JOBS:
            raise _WORDING.error(
                f'TF_CONFIG["{key}"] is a job outside the cluster; move it into TF_CONFIG["cluster"]'
            )
        if difflib.get_close_matches(key.lower(), [_CLUSTER], cutoff=0.8):
            raise _WORDING.error(f'TF_CONFIG["{key}"] is not a key of TF_CONFIG; did you mean "cluster"?')


def _read_job_names(cluster: object, key: str) -> tuple[dict[str, object], Wording]:
    """Return the jobs of the cluster under our names, and the wording with TF_CONFIG's names."""
    where = f'TF_CONFIG["{key}"]'
    if not isinstance(cluster, dict):
        raise _WORDING.error(f"{where} is {_short(cluster)}; it must map job names to lists of addresses")
    jobs = {canonical_job(job): tasks for job, tasks in cluster.items()}
    spelling = {canonical_job(job): job for job in cluster}
    wording = replace(_WORDING, jobs=f'{where}["{{job}}"]', spelling=spelling)
    if len(jobs) < len(cluster):
        raise wording.error(f"{where} has both master and chief, which are the same job; keep one")
    for job in jobs:
        if job not in JOBS:
            raise wording.error(f"{wording.job(job)}: {unknown_job(job)}")
    return jobs, wording


def _read_task(content: Mapping[str, object], wording: Wording) -> tuple[str, int]:
    if _TASK not in content:
        raise wording.error('TF_CONFIG["task"] is missing; say which task of the cluster this process is')
    task = content[_TASK]
    if not isinstance(task, dict):
        raise wording.error(
            f'TF_CONFIG["task"] is {_short(task)}; it must be an object with the keys type and index'
        )
    for key in ("type", "index"):
        if key not in task:
            raise wording.error(f'TF_CONFIG["task"]["{key}"] is missing')
    job_name, task_index = task["type"], task["index"]
    if not isinstance(job_name, str) or canonical_job(job_name) not in JOBS:
        raise wording.error(f"{wording.job_name}: {unknown_job(job_name)}")
    if isinstance(task_index, str) and re.fullmatch(r"-?[0-9]{1,9}", task_index):
        task_index = int(task_index)  # as TensorFlow reads it
    if isinstance(task_index, bool) or not isinstance(task_index, int):
        raise wording.error(
            f"{wording.task_index} is {_short(task_index)}, not an integer; write a whole number, as in 0"
        )
    if task_index < 0:
        raise wording.error(f"{wording.task_index} is {task_index}; indices count from 0")
    return canonical_job(job_name), task_index


def _visible_jobs(
    jobs: Mapping[str, object], job_name: str, task_index: int, is_sparse: bool
) -> dict[str, object]:
    """Leave out the jobs that TFJob hides from a task, and give a lone parameter server its own index.

    An empty mapping is hidden and, under `sparseCluster`, an empty list or null; never the task's own job.
    """
    hidden: list[object] = [{}, [], None] if is_sparse else [{}]
    visible = {job: tasks for job, tasks in jobs.items() if job == job_name or tasks not in hidden}
    own = visible.get(PS)
    is_alone = job_name == PS and len(visible) == 1 and (is_sparse or len(jobs) > 1)
    if is_alone and isinstance(own, list) and len(own) == 1:
        return {PS: {str(task_index): own[0]}}
    return visible


def _integer_keys(job: str, tasks: object, wording: Wording) -> object:
    """Return the same tasks, with a sparse job's indices, which JSON makes text, as numbers again."""
    if not isinstance(tasks, dict):
        return tasks
    addresses: dict[int, object] = {}
    for key, address in tasks.items():
        if not re.fullmatch(r"[0-9]{1,9}", key):
            raise wording.error(
                f'{wording.job(job)} has the index "{key}"; indices are whole numbers, as in {{"0": "a:2222"}}'
            )
        if int(key) in addresses:
            raise wording.error(f"{wording.job(job)} has the index {int(key)} twice")
        addresses[int(key)] = address
    return addresses


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
