"""How cores are dealt out to the workers of one host."""

import pytest

from stratagem.devices.cores import share_of_cores


@pytest.mark.parametrize(
    ("cores", "count"), [(cores, count) for cores in range(1, 12) for count in range(1, cores + 1)]
)
def test_every_core_goes_to_one_worker_and_shares_differ_by_one_at_most(cores: int, count: int) -> None:
    shares = [share_of_cores(range(cores), index, count) for index in range(count)]
    assert [core for share in shares for core in share] == list(range(cores))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
