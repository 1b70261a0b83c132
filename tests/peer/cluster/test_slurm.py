"""Whatever addresses TensorFlow's Slurm resolver gives the tasks of a step, we give them too."""

import os
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.cluster import resolve_cluster
from stratagem.cluster.sources.slurm import expand_counts, expand_nodes

tf = pytest.importorskip("tensorflow")
slurm = pytest.importorskip("tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver")

RANGES = st.builds(
    lambda first, more, width: f"{first:0{width}}-{first + more:0{width}}" if more else f"{first:0{width}}",
    st.integers(0, 99),
    st.integers(0, 9),
    st.integers(1, 3),
)
GROUPS = st.builds(
    lambda prefix, ranges: f"{prefix}[{','.join(ranges)}]" if ranges else prefix,
    st.from_regex(r"[a-z]{1,4}", fullmatch=True),
    st.lists(RANGES, max_size=3),
)
NODES = st.lists(GROUPS, min_size=1, max_size=3).map(",".join)
COUNTS = st.lists(st.from_regex(r"[1-9](\(x[1-4]\))?", fullmatch=True), min_size=1, max_size=4).map(",".join)


@given(NODES)
def test_expand_nodes_alike(text: str) -> None:
    assert expand_nodes(text) == slurm.expand_hostlist(text)


@given(COUNTS)
def test_expand_counts_alike(text: str) -> None:
    assert expand_counts(text) == slurm.expand_tasks_per_node(text)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=5), st.data())
def test_resolve_alike(counts: list[int], data: st.DataObject) -> None:
    environ = {
        "SLURM_STEP_NODELIST": f"n[1-{len(counts)}]",
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
        "SLURM_STEP_NUM_TASKS": str(sum(counts)),
        "SLURM_PROCID": str(data.draw(st.integers(0, sum(counts) - 1))),
    }
    ours = resolve_cluster([], environ)
    assert ours is not None
    with mock.patch.dict(os.environ, environ):
        theirs = tf.distribute.cluster_resolver.SlurmClusterResolver(
            gpus_per_node=max(counts), gpus_per_task=1, auto_set_gpu=False
        )
        assert ours.cluster.as_dict() == theirs.cluster_spec().as_dict()
        assert (ours.job_name, ours.task_index) == theirs.get_task_info()
