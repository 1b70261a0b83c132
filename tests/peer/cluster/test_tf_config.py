"""Whatever TensorFlow reads from a valid TF_CONFIG, we read too; what it refuses in one, we refuse."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stratagem.cluster import ClusterConfig, ClusterSpec, resolve_cluster
from stratagem.errors import ClusterError
from unit.cluster.generated import Jobs, clusters

tf = pytest.importorskip("tensorflow")
multi_worker_util = pytest.importorskip("tensorflow.python.distribute.multi_worker_util")

JOBS = st.sampled_from(["chief", "worker", "ps", "evaluator"])
OTHER_KEYS = st.fixed_dictionaries(
    {},
    optional={
        "environment": st.just("cloud"),
        "rpc_layer": st.just("grpc"),
        "session_master": st.just("x:1"),
    },
)


@contextmanager
def tensorflow_resolver(text: str) -> Iterator[Any]:
    with mock.patch.dict(os.environ, {"TF_CONFIG": text}):
        yield tf.distribute.cluster_resolver.TFConfigClusterResolver()


def resolve(text: str) -> ClusterConfig | None:
    return resolve_cluster([], {"TF_CONFIG": text})


@given(st.data(), clusters(JOBS, smallest_job=1), OTHER_KEYS)
def test_read_alike(data: st.DataObject, jobs: Jobs, others: dict[str, str]) -> None:
    jobs = {job: tasks for job, tasks in jobs.items() if job in ("worker", "ps") or len(tasks) == 1}
    tasks = [(task.job, task.index) for task in ClusterSpec(jobs).tasks()]
    assume(tasks)
    if "evaluator" not in jobs:
        tasks.append(("evaluator", 0))
    job, index = data.draw(st.sampled_from(tasks))
    text = json.dumps({"cluster": jobs, "task": {"type": job, "index": index}, **others})
    ours = resolve(text)
    assert ours is not None
    with tensorflow_resolver(text) as theirs:
        assert ours.cluster.as_dict() == theirs.cluster_spec().as_dict()
        assert (ours.job_name, ours.task_index) == (theirs.task_type, theirs.task_id)
        is_dense = all(isinstance(tasks, list) for tasks in ours.cluster.as_dict().values())
        # TensorFlow compares a sparse index with the number of tasks, and calls every evaluator a chief.
        if is_dense and job != "evaluator":
            assert ours.is_chief == multi_worker_util.is_chief(theirs.cluster_spec(), job, index)


@given(clusters(JOBS, smallest_job=1), JOBS, st.integers(0, 4))
def test_refuse_alike(jobs: Jobs, job: str, index: int) -> None:
    dense = {name: list(ClusterSpec(jobs).job_tasks(name)) for name in jobs}
    assume(dense and all(None not in tasks for tasks in dense.values()))
    # TensorFlow takes any index for an evaluator outside the cluster; there is but one evaluator.
    assume(job != "evaluator" or job in dense or index == 0)
    text = json.dumps({"cluster": dense, "task": {"type": job, "index": index}})
    with tensorflow_resolver(text) as theirs:
        try:
            multi_worker_util.is_chief(theirs.cluster_spec(), theirs.task_type, theirs.task_id)
        except ValueError:
            with pytest.raises(ClusterError):
                resolve(text)
        else:
            assert resolve(text) is not None


@pytest.mark.parametrize("text", ["{}", '{"cluster": {}}', '{"task": {"type": "worker", "index": 0}}'])
def test_local_alike(text: str) -> None:
    with tensorflow_resolver(text) as theirs:
        assert not theirs.cluster_spec()
    assert resolve(text) is None
