import re

import pytest

from stratagem.cluster import ClusterSpec, resolve_cluster
from stratagem.errors import ClusterError

RANK = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def test_ranks_on_one_host_are_workers() -> None:
    config = resolve_cluster([], RANK)
    assert config is not None
    assert config.cluster == ClusterSpec({"worker": ["127.0.0.1:8888", "127.0.0.1:8889"]})
    assert (config.job_name, config.task_index, config.source) == ("worker", 1, "Open MPI")


@pytest.mark.parametrize("environ", [{**RANK, "OMPI_COMM_WORLD_SIZE": "1"}, {"OMPI_COMM_WORLD_SIZE": "2"}])
def test_one_rank_is_not_a_cluster(environ: dict[str, str]) -> None:
    assert resolve_cluster([], environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {**RANK, "OMPI_COMM_WORLD_SIZE": "4"},
            "runs 4 ranks, 2 of them on this host, and does not say where",
        ),
        ({**RANK, "OMPI_COMM_WORLD_SIZE": "4"}, "--job_name=worker --task_index=$OMPI_COMM_WORLD_RANK"),
        ({**RANK, "OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK is 2, but OMPI_COMM_WORLD_SIZE is 2"),
        ({**RANK, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK is 'x'"),
        ({**RANK, "OMPI_COMM_WORLD_SIZE": "0"}, "OMPI_COMM_WORLD_SIZE is '0'"),
        (
            {name: value for name, value in RANK.items() if not name.endswith("LOCAL_SIZE")},
            "OMPI_COMM_WORLD_LOCAL_SIZE is not set",
        ),
    ],
)
def test_says_what_is_wrong(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=re.escape(message)):
        resolve_cluster([], environ)
