import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.cluster import ClusterConfig, ClusterSpec, resolve_cluster
from stratagem.errors import ClusterError
from unit.cluster.generated import Jobs, clusters

WORKERS = {"worker": ["a:1", "b:1"]}
WORKER_0 = {"type": "worker", "index": 0}


def resolve(content: object) -> ClusterConfig | None:
    text = content if isinstance(content, str) else json.dumps(content)
    return resolve_cluster([], {"TF_CONFIG": text})


def task(job: str, index: int) -> dict[str, object]:
    return {"type": job, "index": index}


@pytest.mark.parametrize(
    ("content", "cluster", "job", "index"),
    [
        pytest.param({"cluster": WORKERS, "task": task("worker", 1)}, WORKERS, "worker", 1, id="dense"),
        pytest.param(
            {"cluster": WORKERS, "task": {"type": "worker", "index": "1"}},
            WORKERS,
            "worker",
            1,
            id="index as text",
        ),
        pytest.param(
            {"cluster": {"worker": {"1": "b:1"}, "ps": ["c:1"]}, "task": task("worker", 1)},
            {"worker": {1: "b:1"}, "ps": ["c:1"]},
            "worker",
            1,
            id="sparse",
        ),
        pytest.param(
            {"cluster": {"worker": {"1": "b:1", "0": "a:1"}}, "task": task("worker", 1)},
            WORKERS,
            "worker",
            1,
            id="sparse without a gap",
        ),
        pytest.param(
            {"cluster": {"master": ["m:1"], "worker": ["a:1"]}, "task": task("master", 0)},
            {"chief": ["m:1"], "worker": ["a:1"]},
            "chief",
            0,
            id="master",
        ),
        pytest.param(
            {"cluster": {"master": ["m:1"], "worker": ["a:1"]}, "task": task("worker", 0)},
            {"chief": ["m:1"], "worker": ["a:1"]},
            "worker",
            0,
            id="a worker beside a master",
        ),
        pytest.param(
            {"cluster": WORKERS, "task": task("evaluator", 0)},
            WORKERS,
            "evaluator",
            0,
            id="evaluator outside",
        ),
        pytest.param(
            {
                "cluster": WORKERS,
                "task": {**WORKER_0, "trial": "7", "cloud": "yes"},
                "environment": "cloud",
                "rpc_layer": "grpc",
                "session_master": "x:1",
                "job": {},
            },
            WORKERS,
            "worker",
            0,
            id="keys for others",
        ),
        pytest.param(
            {"cluster": {"ps": ["c:1"]}, "task": task("ps", 0)}, {"ps": ["c:1"]}, "ps", 0, id="lone ps"
        ),
        pytest.param(
            {"cluster": {"worker": {}, "ps": ["c:1"]}, "task": task("ps", 2)},
            {"ps": {2: "c:1"}},
            "ps",
            2,
            id="lone ps of several",
        ),
        pytest.param(
            {"sparseCluster": {"worker": {}, "ps": ["c:1"]}, "task": task("ps", 1)},
            {"ps": {1: "c:1"}},
            "ps",
            1,
            id="TFJob dynamic ps",
        ),
        pytest.param(
            {"sparseCluster": {"worker": {"3": "d:1"}, "ps": ["c:1", "e:1"]}, "task": task("worker", 3)},
            {"worker": {3: "d:1"}, "ps": ["c:1", "e:1"]},
            "worker",
            3,
            id="TFJob dynamic worker",
        ),
        pytest.param(
            {"sparseCluster": {"worker": {"3": "d:1"}, "ps": None}, "task": task("worker", 3)},
            {"worker": {3: "d:1"}},
            "worker",
            3,
            id="TFJob dynamic worker without ps",
        ),
        pytest.param(
            {"sparseCluster": {"worker": {}, "ps": []}, "task": task("evaluator", 0)},
            {},
            "evaluator",
            0,
            id="TFJob dynamic evaluator",
        ),
    ],
)
def test_reads_every_form(content: object, cluster: Any, job: str, index: int) -> None:
    config = resolve(content)
    assert config is not None
    assert config.cluster == ClusterSpec(cluster)
    assert (config.job_name, config.task_index, config.source) == (job, index, "TF_CONFIG")


@given(st.data(), clusters(st.sampled_from(["chief", "worker", "ps"]), smallest_job=1))
def test_reads_what_json_makes_of_a_cluster(data: st.DataObject, jobs: Jobs) -> None:
    jobs = {job: tasks for job, tasks in jobs.items() if job != "chief" or len(tasks) == 1}
    cluster = ClusterSpec(jobs)
    if not cluster:
        return
    chosen = data.draw(st.sampled_from(cluster.tasks()))
    config = resolve({"cluster": jobs, "task": task(chosen.job, chosen.index)})
    assert config is not None
    assert config.cluster == cluster
    assert config.address == chosen.address


@pytest.mark.parametrize(
    "content", ["", "  ", {}, {"cluster": {}}, {"cluster": {}, "task": WORKER_0}, {"task": WORKER_0}]
)
def test_no_cluster_means_a_local_run(content: object) -> None:
    assert resolve(content) is None


MALFORMED: list[tuple[object, str]] = [
    ('{"cluster": {"worker": ["a:1" "b:1"]}}', "Expecting ',' delimiter at character 30, after "),
    ('{"cluster": {"worker": ["a:1" "b:1"]}}', """after ': {"worker": ["a:1" ', before '"b:1"]}}'"""),
    ("{'cluster': {}}", "JSON wants double quotes"),
    ('{"cluster": {', "TF_CONFIG is not JSON: Expecting property name"),
    ('{"cluster": {', "at its end"),
    ("[" * 100_000, "TF_CONFIG cannot be read"),
    ('{"cluster": ' + "1" * 5000 + "}", "TF_CONFIG cannot be read"),
    ([WORKERS], "TF_CONFIG is [{"),
    ("3", "TF_CONFIG is 3; it must be an object"),
    ("null", "TF_CONFIG is null"),
    ({"worker": ["a:1"], "task": WORKER_0}, 'TF_CONFIG["worker"] is a job outside the cluster'),
    ({"master": ["a:1"]}, 'TF_CONFIG["master"] is a job outside'),
    (
        {"clusters": WORKERS, "task": WORKER_0},
        'TF_CONFIG["clusters"] is not a key of TF_CONFIG; did you mean',
    ),
    ({"Cluster": WORKERS, "task": WORKER_0}, 'TF_CONFIG["Cluster"] is not a key'),
    ({"cluster": ["a:1"], "task": WORKER_0}, 'TF_CONFIG["cluster"] is ["a:1"]; it must map job names'),
    ({"cluster": None, "task": WORKER_0}, 'TF_CONFIG["cluster"] is null'),
    ({"cluster": "a:1", "task": WORKER_0}, 'TF_CONFIG["cluster"] is "a:1"'),
    (
        {"cluster": {"cluster": WORKERS}, "task": WORKER_0},
        'TF_CONFIG["cluster"]["cluster"]: \'cluster\' is not',
    ),
    ({"cluster": {"worker": "a:1,b:1"}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["worker"] is the text'),
    ({"cluster": {"worker": "a:1,b:1"}, "task": WORKER_0}, "write a list of addresses: ['a:1', 'b:1']"),
    ({"cluster": {"worker": 3}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["worker"] is 3; write a list'),
    ({"cluster": {"worker": []}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["worker"] is empty'),
    ({"cluster": {"worker": {}}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["worker"] is empty'),
    ({"cluster": {**WORKERS, "ps": []}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["ps"] is empty'),
    (
        {"cluster": {"worker": ["a"]}, "task": WORKER_0},
        'TF_CONFIG["cluster"]["worker"][0]: \'a\' has no port',
    ),
    ({"cluster": {"worker": ["http://a:1"]}, "task": WORKER_0}, "has a scheme"),
    ({"cluster": {"worker": [1]}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["worker"][0] is 1'),
    (
        {"cluster": {"worker": ["a:1"], "ps": ["a:1"]}, "task": WORKER_0},
        'TF_CONFIG["cluster"]["worker"][0] and TF_CONFIG["cluster"]["ps"][0] are both \'a:1\'',
    ),
    ({"cluster": {"master": ["a"]}, "task": WORKER_0}, 'TF_CONFIG["cluster"]["master"][0]'),
    ({"cluster": {"master": ["a:1", "b:1"]}, "task": task("master", 0)}, '["master"] has 2 tasks'),
    ({"cluster": {"master": ["a:1"], "chief": ["b:1"]}, "task": WORKER_0}, "both master and chief"),
    ({"cluster": {"evaluator": ["a:1", "b:1"]}, "task": task("evaluator", 0)}, "at most one evaluator"),
    (
        {"cluster": {"wroker": ["a:1"]}, "task": WORKER_0},
        'TF_CONFIG["cluster"]["wroker"]: \'wroker\' is not one',
    ),
    ({"cluster": {"wroker": ["a:1"]}, "task": WORKER_0}, "did you mean 'worker'?"),
    ({"cluster": {"worker": {"x": "a:1"}}, "task": WORKER_0}, '["worker"] has the index "x"'),
    ({"cluster": {"worker": {"-1": "a:1"}}, "task": WORKER_0}, 'has the index "-1"'),
    ({"cluster": {"worker": {"1": "a:1", "01": "b:1"}}, "task": WORKER_0}, "has the index 1 twice"),
    ({"cluster": WORKERS}, 'TF_CONFIG["task"] is missing'),
    ({"cluster": WORKERS, "task": ["worker", 0]}, 'TF_CONFIG["task"] is ["worker", 0]; it must be an object'),
    ({"cluster": WORKERS, "task": None}, 'TF_CONFIG["task"] is null'),
    ({"cluster": WORKERS, "task": {"index": 0}}, 'TF_CONFIG["task"]["type"] is missing'),
    ({"cluster": WORKERS, "task": {"type": "worker"}}, 'TF_CONFIG["task"]["index"] is missing'),
    (
        {"cluster": WORKERS, "task": task("work", 0)},
        'TF_CONFIG["task"]["type"]: \'work\' is not one of the jobs',
    ),
    ({"cluster": WORKERS, "task": task("work", 0)}, "did you mean 'worker'?"),
    ({"cluster": WORKERS, "task": {"type": 1, "index": 0}}, 'TF_CONFIG["task"]["type"]: 1 is not one of'),
    ({"cluster": WORKERS, "task": {"type": ["worker"], "index": 0}}, "['worker'] is not one of"),
    (
        {"cluster": WORKERS, "task": task("ps", 0)},
        'TF_CONFIG["task"]["type"] is \'ps\', but the cluster has no',
    ),
    ({"cluster": WORKERS, "task": task("worker", 2)}, '["index"] is 2, but the worker tasks are: 0, 1'),
    ({"cluster": {"worker": {"1": "a:1"}}, "task": WORKER_0}, '["index"] is 0, but the worker tasks are: 1'),
    ({"cluster": WORKERS, "task": task("evaluator", 1)}, "the evaluator tasks are: 0"),
    (
        {"cluster": WORKERS, "task": task("worker", -1)},
        'TF_CONFIG["task"]["index"] is -1; indices count from 0',
    ),
    (
        {"cluster": WORKERS, "task": {"type": "worker", "index": "zero"}},
        '["index"] is "zero", not an integer; write a whole number',
    ),
    (
        {"cluster": WORKERS, "task": {"type": "worker", "index": "-1"}},
        'TF_CONFIG["task"]["index"] is -1; indices count from 0',
    ),
    ({"cluster": WORKERS, "task": {"type": "worker", "index": True}}, '["index"] is true, not an integer'),
    ({"cluster": WORKERS, "task": {"type": "worker", "index": 0.0}}, '["index"] is 0.0, not an integer'),
    ({"cluster": WORKERS, "task": {"type": "worker", "index": None}}, '["index"] is null, not an integer'),
    ({"cluster": {"ps": ["c:1"]}, "task": task("ps", 1)}, '["index"] is 1, but the ps tasks are: 0'),
    ({"sparseCluster": {"worker": {}, "ps": []}, "task": task("chief", 0)}, "it has no job at all"),
    ({"sparseCluster": {"worker": {"0": "a"}}, "task": WORKER_0}, 'TF_CONFIG["sparseCluster"]["worker"][0]'),
]


@pytest.mark.parametrize(("content", "message"), MALFORMED)
def test_shows_the_wrong_part_and_the_right_form(content: object, message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)) as caught:
        resolve(content)
    text = str(caught.value)
    example = text.partition("The right form: TF_CONFIG='")[2].removesuffix("'")
    assert resolve(example) is not None, "the right form is one"


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        resolve(text)
    except ClusterError as error:
        assert "The right form" in str(error)


NESTED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["a:1", "worker", "ps", "0", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["worker", "ps", "master", "0", "type", "index", "x-y"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.fixed_dictionaries({"cluster": NESTED, "task": NESTED}), st.booleans())
def test_any_json_is_read_or_refused(content: dict[str, object], is_sparse: bool) -> None:
    if is_sparse:
        content["sparseCluster"] = content.pop("cluster")
    try:
        resolve(content)
    except ClusterError as error:
        assert "The right form" in str(error)
