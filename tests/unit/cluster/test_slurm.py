import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.cluster import ClusterSpec, resolve_cluster
from stratagem.cluster.sources.slurm import expand_counts, expand_nodes
from stratagem.errors import ClusterError

STEP = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "2"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("n1,m5", ["n1", "m5"]),
        ("n[1-2],m5", ["n1", "n2", "m5"]),
        ("n[1-2,05-07],m5", ["n1", "n2", "n05", "n06", "n07", "m5"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("n[3]", ["n3"]),
        ("rack[0-1]-n[1,3]", ["rack0-n1", "rack0-n3", "rack1-n1", "rack1-n3"]),
        ("n[1-2]-ib.site,login", ["n1-ib.site", "n2-ib.site", "login"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_expands_nodes(text: str, nodes: list[str]) -> None:
    assert expand_nodes(text) == nodes


WIDTHS = st.tuples(st.integers(0, 999), st.integers(0, 20), st.integers(1, 4))
PREFIXES = st.from_regex(r"[a-z][a-z-]{0,4}", fullmatch=True)


@given(st.lists(st.tuples(PREFIXES, st.lists(WIDTHS, max_size=4)), min_size=1, max_size=4))
def test_expands_whatever_is_abbreviated(groups: list[tuple[str, list[tuple[int, int, int]]]]) -> None:
    texts, nodes = [], []
    for prefix, ranges in groups:
        parts = []
        for first, more, width in ranges:
            start = str(first).zfill(width)
            parts.append(f"{start}-{str(first + more).zfill(width)}" if more else start)
            nodes += [f"{prefix}{str(first + i).zfill(len(start))}" for i in range(more + 1)]
        if not ranges:
            nodes.append(prefix)
        texts.append(f"{prefix}[{','.join(parts)}]" if ranges else prefix)
    assert expand_nodes(",".join(texts)) == nodes


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), min_size=1, max_size=6))
def test_expands_counts(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{repeat})" if repeat > 1 else str(count) for count, repeat in runs)
    assert expand_counts(text) == [count for count, repeat in runs for _ in range(repeat)]


@pytest.mark.parametrize(
    "text",
    [
        *["", ",", "n1,", "n[1-2", "n1]", "n[]", "n[1-]", "n[-1]", "n[a-b]", "n[2-1]", "n[1[2-3]]"],
        *["n[1-2-3]", "n[0-70000]", "n[0-999]m[0-999]"],
    ],
)
def test_refuses_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(repr(text))):
        expand_nodes(text)


@pytest.mark.parametrize(
    "text", ["", "x", "3(x)", "3(2)", "3(x2", "3,,2", "-1", "3 (x2)", "70000", "9(x99999)"]
)
def test_refuses_what_is_no_list_of_counts(text: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(repr(text))):
        expand_counts(text)


@pytest.mark.parametrize(
    ("environ", "addresses", "index"),
    [
        (STEP, ["n1:8888", "n1:8889", "n2:8888", "n2:8889"], 2),
        (
            {**STEP, "SLURM_NODEID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "4"},
            ["n1:8888", "n1:8889", "n2:8888", "n2:8889"],
            2,
        ),
        (
            {**STEP, "SLURM_STEP_NODELIST": "m5,n[01-02]", "SLURM_STEP_TASKS_PER_NODE": "1,2,1"},
            ["m5:8888", "n01:8888", "n01:8889", "n02:8888"],
            2,
        ),
        (
            {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_PROCID": "0"},
            ["n1:8888", "n1:8889"],
            0,
        ),
    ],
)
def test_tasks_of_a_step_are_workers(environ: dict[str, str], addresses: list[str], index: int) -> None:
    config = resolve_cluster([], environ)
    assert config is not None
    assert config.cluster == ClusterSpec({"worker": addresses})
    assert (config.job_name, config.task_index, config.source) == ("worker", index, "Slurm")
    assert config.is_chief == (index == 0)


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(
            {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, id="batch script"
        ),
        pytest.param({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1"}, id="interactive shell"),
        pytest.param({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x1)"}, id="one task"),
        pytest.param({"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "2"}, id="no rank"),
    ],
)
def test_only_a_step_of_several_tasks_is_a_cluster(environ: dict[str, str]) -> None:
    assert resolve_cluster([], environ) is None


def test_the_daemons_of_mpirun_are_not_the_cluster() -> None:
    step = {**STEP, "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    config = resolve_cluster([], {**step, **MPI, "OMPI_COMM_WORLD_SIZE": "4"})
    assert config is not None
    assert (config.source, config.task_index) == ("Open MPI", 3)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**STEP, "SLURM_STEP_NODELIST": "n[1-2"}, "SLURM_STEP_NODELIST: 'n[1-2' is not a list of nodes"),
        (
            {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2x2"},
            "SLURM_STEP_TASKS_PER_NODE: '2x2' is not a list of counts",
        ),
        (
            {**STEP, "SLURM_STEP_TASKS_PER_NODE": "2"},
            "'n[1-2]', 2 nodes, but SLURM_STEP_TASKS_PER_NODE is '2'",
        ),
        (
            {**STEP, "SLURM_PROCID": "4"},
            "SLURM_PROCID is 4, but SLURM_STEP_TASKS_PER_NODE is '2(x2)', 4 tasks",
        ),
        ({**STEP, "SLURM_PROCID": "x"}, "SLURM_PROCID is 'x'"),
        ({**STEP, "SLURM_STEP_NODELIST": "n[1-2]:3"}, "SLURM_STEP_NODELIST is 'n[1-2]:3': "),
        ({**STEP, "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}, "use srun --distribution=block"),
        ({**STEP, "SLURM_STEP_NODELIST": "n1,n1"}, 'cluster["worker"][0] and cluster["worker"][2] are both'),
    ],
)
def test_names_the_wrong_variable(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)):
        resolve_cluster([], environ)
