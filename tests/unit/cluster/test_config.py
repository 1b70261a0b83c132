import re
from typing import Any

import pytest

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.errors import ClusterError

WORKERS = {"worker": ["a:1", "b:1"]}
WITH_PS = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
WITH_CHIEF = {"chief": ["x:1"], "worker": ["a:1"], "evaluator": ["e:1"]}


@pytest.mark.parametrize(
    ("jobs", "job", "index", "is_chief", "address"),
    [
        (WORKERS, "worker", 0, True, "a:1"),
        (WORKERS, "worker", 1, False, "b:1"),
        (WORKERS, "evaluator", 0, False, None),
        (WITH_PS, "ps", 0, False, "c:1"),
        (WITH_CHIEF, "chief", 0, True, "x:1"),
        (WITH_CHIEF, "worker", 0, False, "a:1"),
        (WITH_CHIEF, "evaluator", 0, False, "e:1"),
        ({"worker": {3: "a:1"}}, "worker", 3, False, "a:1"),
        ({"ps": {1: "c:1"}}, "ps", 1, False, "c:1"),
        ({}, "evaluator", 0, False, None),
    ],
)
def test_roles(jobs: Any, job: str, index: int, is_chief: bool, address: str | None) -> None:
    config = ClusterConfig(ClusterSpec(jobs), job, index)
    assert config.is_chief is is_chief
    assert config.address == address
    assert config.source == "arguments"


@pytest.mark.parametrize(
    ("jobs", "job", "index", "message"),
    [
        (WORKERS, "work", 0, "job_name: 'work' is not one of the jobs chief, worker, ps, evaluator; "),
        (WORKERS, "work", 0, "did you mean 'worker'? The right form"),
        (WORKERS, "master", 0, "did you mean 'chief'?"),
        (WORKERS, "Worker", 0, "did you mean 'worker'?"),
        (WORKERS, "gpu", 0, "is not one of the jobs chief, worker, ps, evaluator. "),
        (WORKERS, None, 0, "None is not one of the jobs"),
        (WORKERS, "ps", 0, "job_name is 'ps', but the cluster has no such job; it has worker"),
        (WORKERS, "worker", 2, "task_index is 2, but the worker tasks are: 0, 1"),
        (WORKERS, "worker", -1, "task_index is -1"),
        (WORKERS, "worker", True, "task_index is True, of type bool"),
        (WORKERS, "worker", "0", "task_index is '0', of type str"),
        ({"worker": [f"a:{port}" for port in range(1, 21)]}, "worker", 20, "tasks are: 0 to 19"),
        ({"worker": {3: "a:1"}}, "worker", 0, "the worker tasks are: 3"),
        (WORKERS, "evaluator", 1, "the evaluator tasks are: 0"),
        ({"chief": ["a:1", "b:1"]}, "chief", 0, 'cluster["chief"] has 2 tasks; a cluster has at most one'),
        ({"evaluator": ["a:1", "b:1"]}, "evaluator", 0, "at most one evaluator"),
        ({"worker": ["a:1"], "ps": []}, "worker", 0, 'cluster["ps"] is empty'),
        ({"worker": ["a:1"], "pss": ["b:1"]}, "worker", 0, "cluster[\"pss\"]: 'pss' is not one of the jobs"),
        ({}, "worker", 0, "it has no job at all"),
    ],
)
def test_shows_the_wrong_part_and_the_right_form(jobs: Any, job: Any, index: Any, message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)) as caught:
        ClusterConfig(ClusterSpec(jobs), job, index)
    assert "The right form: ClusterConfig(" in str(caught.value)


def test_wants_a_cluster_spec() -> None:
    with pytest.raises(ClusterError, match="not a ClusterSpec"):
        ClusterConfig({"worker": ["a:1"]}, "worker", 0)  # type: ignore[arg-type]
