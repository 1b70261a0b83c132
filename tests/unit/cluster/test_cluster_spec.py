import ast
import copy
import re
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given

from stratagem.cluster import ClusterSpec, Task
from stratagem.errors import ClusterError
from unit.cluster.generated import Jobs, clusters

CLUSTER = ClusterSpec({"worker": ["a:2222", "b:2222"], "ps": {3: "d:2222", 1: "c:2222"}, "idle": []})


def test_answers() -> None:
    assert CLUSTER.jobs == ["idle", "ps", "worker"]
    assert [CLUSTER.num_tasks(job) for job in CLUSTER.jobs] == [0, 2, 2]
    assert CLUSTER.task_indices("ps") == [1, 3]
    assert CLUSTER.task_indices("idle") == []
    assert CLUSTER.task_address("ps", 3) == "d:2222"
    assert CLUSTER.job_tasks("worker") == ["a:2222", "b:2222"]
    assert CLUSTER.job_tasks("ps") == [None, "c:2222", None, "d:2222"]
    assert CLUSTER.job_tasks("idle") == []
    assert CLUSTER.as_dict() == {
        "idle": {},
        "ps": {1: "c:2222", 3: "d:2222"},
        "worker": ["a:2222", "b:2222"],
    }
    assert CLUSTER.tasks() == [
        Task("ps", 1, "c:2222"),
        Task("ps", 3, "d:2222"),
        Task("worker", 0, "a:2222"),
        Task("worker", 1, "b:2222"),
    ]


def test_indices_without_a_gap_make_a_job_dense() -> None:
    cluster = ClusterSpec({"worker": {1: "b:1", 0: "a:1"}})
    assert cluster.as_dict() == {"worker": ["a:1", "b:1"]}
    assert cluster == ClusterSpec({"worker": ["a:1", "b:1"]})


def test_is_true_where_there_are_jobs() -> None:
    assert CLUSTER
    assert not ClusterSpec({})


@given(clusters())
def test_round_trips(jobs: Jobs) -> None:
    cluster = ClusterSpec(jobs)
    sames = [
        ClusterSpec(cluster),
        ClusterSpec(cluster.as_dict()),
        ClusterSpec(dict(reversed(jobs.items()))),
        ClusterSpec(ast.literal_eval(repr(cluster).removeprefix("ClusterSpec(").removesuffix(")"))),
        copy.deepcopy(cluster),
    ]
    for same in sames:
        assert same == cluster
        assert hash(same) == hash(cluster)
        assert repr(same) == repr(cluster)
    assert cluster == jobs
    assert cluster.as_dict() == ClusterSpec(cluster.as_dict()).as_dict()


@given(clusters())
def test_the_answers_agree_with_each_other(jobs: Jobs) -> None:
    cluster = ClusterSpec(jobs)
    assert cluster.jobs == sorted(jobs)
    assert len(cluster.tasks()) == sum(map(cluster.num_tasks, cluster.jobs))
    for task in cluster.tasks():
        assert cluster.task_address(task.job, task.index) == task.address
        assert cluster.job_tasks(task.job)[task.index] == task.address
        assert jobs[task.job][task.index] == task.address


@given(clusters(), clusters())
def test_differs_where_a_task_differs(one: Jobs, other: Jobs) -> None:
    assert (ClusterSpec(one) == ClusterSpec(other)) == (
        ClusterSpec(one).as_dict() == ClusterSpec(other).as_dict()
    )


def test_differs_from_what_is_not_a_cluster() -> None:
    assert CLUSTER != 1
    assert CLUSTER != {"worker": "a"}
    assert CLUSTER != {"worker": ["a:2222"]}


def test_does_not_change() -> None:
    given_jobs = {"worker": ["a:1"]}
    cluster = ClusterSpec(given_jobs)
    given_jobs["worker"].append("b:1")
    cluster.jobs.append("ps")
    cluster.as_dict()["ps"] = []
    cluster.job_tasks("worker").clear()
    assert cluster == ClusterSpec({"worker": ["a:1"]})
    with pytest.raises(FrozenInstanceError):
        cluster._jobs = {}  # type: ignore[misc]


def test_tasks_may_share_port_zero() -> None:
    assert ClusterSpec({"worker": ["a:0", "a:0"]}).num_tasks("worker") == 2


WRONG: list[tuple[object, str]] = [
    (["a:1"], "a cluster is a mapping from job names to addresses, not ['a:1']"),
    (None, "not None"),
    ({"my-job": ["a:1"]}, "'my-job' is not a job name"),
    ({"1st": ["a:1"]}, "'1st' is not a job name"),
    ({"": ["a:1"]}, "'' is not a job name"),
    ({3: ["a:1"]}, "3 is not a job name"),
    (
        {"worker": "a:1, b:2"},
        "cluster[\"worker\"] is the text 'a:1, b:2'; write a list of addresses: ['a:1', 'b:2']",
    ),
    ({"worker": 3}, 'cluster["worker"] is 3; write a list'),
    ({"worker": {"a:1"}}, "write a list"),
    ({"worker": None}, 'cluster["worker"] is None'),
    ({"worker": {True: "a:1"}}, 'an index in cluster["worker"] is True, of type bool; indices are integers'),
    ({"worker": {"1": "a:1"}}, "is '1', of type str"),
    ({"worker": {1.0: "a:1"}}, "is 1.0, of type float"),
    ({"worker": {-1: "a:1"}}, "is -1; indices are integers from 0 up"),
    ({"worker": ["a:1", "b"]}, "cluster[\"worker\"][1]: 'b' has no port; write host:port, as in 'b:2222'"),
    ({"worker": {7: "http://b:1"}}, "cluster[\"worker\"][7]: 'http://b:1' has a scheme"),
    ({"worker": [1]}, 'cluster["worker"][0] is 1; an address is text'),
    ({"worker": [None]}, 'cluster["worker"][0] is None'),
    ({"worker": ["a:1", "a:1"]}, 'cluster["worker"][0] and cluster["worker"][1] are both \'a:1\''),
    ({"worker": ["A:1"], "ps": {4: "a:01"}}, 'cluster["worker"][0] and cluster["ps"][4] are both'),
]


@pytest.mark.parametrize(("jobs", "message"), WRONG)
def test_shows_the_wrong_part_and_the_right_form(jobs: object, message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)) as caught:
        ClusterSpec(jobs)  # type: ignore[arg-type]
    assert "The right form: ClusterSpec({" in str(caught.value)


@pytest.mark.parametrize("question", ["num_tasks", "task_indices", "job_tasks"])
def test_names_the_jobs_there_are(question: str) -> None:
    with pytest.raises(ClusterError, match="no job 'chief'; it has idle, ps, worker"):
        getattr(CLUSTER, question)("chief")


@pytest.mark.parametrize(
    ("job", "index", "message"),
    [
        ("chief", 0, "no job 'chief'"),
        ("ps", 0, "job 'ps' has no task 0; it has 1, 3"),
        ("worker", "0", "no task '0'"),
        ("idle", 0, "it has no task at all"),
    ],
)
def test_names_the_tasks_there_are(job: str, index: int, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        CLUSTER.task_address(job, index)
