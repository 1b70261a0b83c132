"""The hosts of a TPU slice, from the variables that Google's machines set."""

import pytest

from stratagem.errors import ClusterError
from stratagem.strategies.tpu import tpu_hosts


def test_the_hosts_of_a_slice() -> None:
    config = tpu_hosts({"TPU_WORKER_HOSTNAMES": "t-0,t-1, t-2", "TPU_WORKER_ID": "1"})
    assert config is not None
    assert config.cluster.job_tasks("worker") == ["t-0:8888", "t-1:8888", "t-2:8888"]
    assert (config.job_name, config.task_index, config.is_chief) == ("worker", 1, False)


@pytest.mark.parametrize("environ", [{}, {"TPU_WORKER_HOSTNAMES": ""}, {"TPU_WORKER_HOSTNAMES": "localhost"}])
def test_one_host_is_no_cluster(environ: dict[str, str]) -> None:
    assert tpu_hosts(environ) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_ID"),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "2"}, "numbered 0 to 1"),
        (
            {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0", "MEGASCALE_NUM_SLICES": "2"},
            "name all of them",
        ),
    ],
)
def test_what_does_not_name_all_hosts(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tpu_hosts(environ)
