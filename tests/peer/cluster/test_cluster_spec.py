"""Whatever tf.train.ClusterSpec answers for a cluster, we answer too."""

import pytest
from hypothesis import given

from stratagem.cluster import ClusterSpec
from unit.cluster.generated import Jobs, clusters

tf = pytest.importorskip("tensorflow")


@given(clusters())
def test_answers_alike(jobs: Jobs) -> None:
    ours, theirs = ClusterSpec(jobs), tf.train.ClusterSpec(jobs)
    assert ours.jobs == sorted(theirs.jobs)
    assert ours.as_dict() == theirs.as_dict()
    assert repr(ours) == repr(theirs)
    assert bool(ours) == bool(theirs)
    for job in ours.jobs:
        assert ours.num_tasks(job) == theirs.num_tasks(job)
        assert ours.task_indices(job) == theirs.task_indices(job)
        if ours.num_tasks(job):  # TensorFlow fails on an empty job
            assert ours.job_tasks(job) == theirs.job_tasks(job)
        for index in ours.task_indices(job):
            assert ours.task_address(job, index) == theirs.task_address(job, index)


@given(clusters(largest_job=2), clusters(largest_job=2))
def test_equal_alike(one: Jobs, other: Jobs) -> None:
    for second in (one, other, dict(reversed(one.items()))):
        theirs = tf.train.ClusterSpec(one) == tf.train.ClusterSpec(second)
        assert (ClusterSpec(one) == ClusterSpec(second)) == theirs
        assert (ClusterSpec(one) != ClusterSpec(second)) != theirs


@given(clusters())
def test_copies_and_round_trips_alike(jobs: Jobs) -> None:
    theirs = tf.train.ClusterSpec(tf.train.ClusterSpec(jobs))
    assert ClusterSpec(ClusterSpec(jobs)).as_dict() == theirs.as_dict()
    assert ClusterSpec(theirs.as_dict()) == ClusterSpec(jobs)
    assert tf.train.ClusterSpec(ClusterSpec(jobs).as_dict()) == theirs


@given(clusters())
def test_refuse_alike_what_is_not_there(jobs: Jobs) -> None:
    for cluster in (ClusterSpec(jobs), tf.train.ClusterSpec(jobs)):
        for question in (cluster.num_tasks, cluster.task_indices, cluster.job_tasks):
            with pytest.raises(ValueError):
                question("nowhere")
        for job in cluster.jobs:
            with pytest.raises(ValueError):
                cluster.task_address(job, 99)
