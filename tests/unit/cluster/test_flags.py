import re

import pytest

from stratagem.cluster import ClusterSpec, resolve_cluster
from stratagem.errors import ClusterError

CLUSTER = ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})


@pytest.mark.parametrize(
    "line",
    [
        "--worker_hosts=a:1,b:1 --ps_hosts=c:1 --job_name=worker --task_index=1",
        "--worker_hosts a:1,b:1 --ps_hosts c:1 --job_name worker --task_index 1",
        "-worker_hosts=a:1,b:1 -ps_hosts=c:1 -job_name=worker -task_index=1",
        "-worker_hosts a:1,b:1 -ps_hosts c:1 -job_name worker -task_index 1",
        "--worker_hosts=a:1,b:1 --ps_hosts=c:1 --job_name=worker --task_id=1",
        "--worker_hosts=a:1,b:1 --ps_hosts=c:1 --job_name=worker --task_id=1 --task_index 1",
        "train --lr=0.1 --worker_hosts=a:1,b:1 data --ps_hosts=c:1 -v --job_name=worker --task_index=1 -x=3",
        "--job_name=ps --worker_hosts=a:1,b:1 --ps_hosts=c:1 --job_name=worker --task_index=1",
        "--worker_hosts=a:1,b:1 --ps_hosts=c:1 --job_name=worker --task_index=1 -- --job_name=ps",
        "--worker_hosts=a:1,b:1 --ps_hosts=c:1 --chief_hosts= --job_name=worker --task_index=1",
    ],
)
def test_reads_every_form(line: str) -> None:
    config = resolve_cluster(line.split(), {})
    assert config is not None
    assert (config.cluster, config.job_name, config.task_index) == (CLUSTER, "worker", 1)
    assert config.source == "flags"
    assert not config.is_chief


@pytest.mark.parametrize(("job", "index"), [("chief", 0), ("master", 0), ("evaluator", 0), ("worker", 0)])
def test_reads_every_job(job: str, index: int) -> None:
    line = f"--chief_hosts=x:1 --worker_hosts=a:1 --evaluator_hosts=e:1 --job_name={job} --task_index={index}"
    config = resolve_cluster(line.split(), {})
    assert config is not None
    assert config.cluster.jobs == ["chief", "evaluator", "worker"]
    assert config.job_name == ("chief" if job == "master" else job)
    assert config.is_chief == (config.job_name == "chief")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--job_name=mnist",
        "--job_name=worker",
        "--job_name=mnist --task_index=3",
        "--task_index=3",
        "--worker_hosts= --ps_hosts= --job_name= --task_index=0",
        "-- --worker_hosts=a:1 --job_name=worker --task_index=0",
        "--my_worker_hosts=a:1",
    ],
)
def test_says_nothing_where_no_cluster_is_meant(line: str) -> None:
    assert resolve_cluster(line.split(), {}) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--worker_hosts=a:1", "no --job_name"),
        ("--worker_hosts=a:1 --job_name=worker", "no --task_index"),
        ("--worker_hosts=a:1 --job_name=work --task_index=0", "--job_name: 'work' is not one of the jobs"),
        ("--worker_hosts=a:1 --job_name=work --task_index=0", "did you mean 'worker'?"),
        (
            "--worker_hosts=a:1 --job_name=ps --task_index=0",
            "--job_name is 'ps', but the cluster has no such",
        ),
        (
            "--worker_hosts=a:1 --job_name=worker --task_index=1",
            "--task_index is 1, but the worker tasks are: 0",
        ),
        (
            "--worker_hosts=a:1 --job_name=worker --task_index=x",
            "--task_index is 'x'; it must be a whole number",
        ),
        ("--worker_hosts=a:1 --job_name=worker --task_index -1", "--task_index is '-1'; it must be a whole"),
        ("--worker_hosts=a:1 --job_name=worker --task_id=", "--task_id is ''"),
        (
            "--worker_hosts=a:1 --job_name=worker --task_id=0 --task_index=1",
            "--task_index is 1 but --task_id is 0",
        ),
        ("--worker_hosts=a:1 --job_name --task_index=0", "--job_name has no value"),
        ("--worker_hosts --job_name=worker --task_index=0", "--worker_hosts has no value"),
        ("--worker_hosts=a:1 --job_name=worker --task_index", "--task_index has no value"),
        ("--worker_hosts=a:1,b --job_name=worker --task_index=0", "--worker_hosts[1]: 'b' has no port"),
        ("--worker_hosts=a:1, --job_name=worker --task_index=0", "--worker_hosts[1]: the address is empty"),
        (
            "--worker_hosts=a:1 --ps_hosts=a:1 --job_name=ps --task_index=0",
            "--worker_hosts[0] and --ps_hosts[0]",
        ),
        ("--chief_hosts=a:1,b:1 --job_name=chief --task_index=0", "--chief_hosts has 2 tasks"),
        ("--job_name=ps --task_index=0", "no hosts: give --worker_hosts"),
    ],
)
def test_shows_the_wrong_part_and_the_right_form(line: str, message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)) as caught:
        resolve_cluster(line.split(), {})
    assert "The right form: --worker_hosts=" in str(caught.value)
