"""Sums between real processes: the right bits, on every worker, every time."""

from collections.abc import Iterator

import pytest

from process.collectives.nursery import Nursery


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture(scope="module")
def far_apart() -> Iterator[Nursery]:
    """Workers that have no shared memory, as on different hosts."""
    with Nursery(STRATAGEM_SHM="off") as nursery:
        yield nursery


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_sums_are_those_in_worker_order_bit_for_bit(
    nursery: Nursery, far_apart: Nursery, workers: int
) -> None:
    found = set()
    for where in (nursery, far_apart):
        with where.crew(workers, "sums") as crew:
            found |= {end["result"] for end in crew.ends()}
    assert len(found) == 1


def test_500_steps_give_the_same_bits_in_every_run(nursery: Nursery) -> None:
    found = set()
    for _ in range(2):
        with nursery.crew(2, "steps", count=500) as crew:
            found |= {end["result"] for end in crew.ends()}
    assert len(found) == 1


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_whose_data_end_early_stay_until_all_are_done(nursery: Nursery, workers: int) -> None:
    with nursery.crew(workers, "uneven") as crew:
        ends = [end["result"] for end in crew.ends()]
    batches = [3 * worker for worker in range(workers)]
    wanted = [
        float(sum(worker + 1 for worker in range(workers) if batches[worker] > step))
        for step in range(max(batches))
    ]
    assert ends == [[*wanted, 0.0]] * workers


@pytest.mark.parametrize("workers", [2, 3])
def test_gather_broadcast_and_barrier(nursery: Nursery, workers: int) -> None:
    with nursery.crew(workers, "others") as crew:
        crew.ends()


def test_a_late_starter_is_waited_for(nursery: Nursery) -> None:
    with nursery.crew(3, "late", start=False) as crew:
        crew.start(0, 2)
        assert crew.line(0)["listens"]
        assert crew.line(2)["listens"]
        crew.start(1)
        assert [end["result"] for end in crew.ends()] == [3.0] * 3


def test_groups_come_and_go(nursery: Nursery) -> None:
    with nursery.crew(3, "cycles", count=30) as crew:
        assert max(end["result"] for end in crew.ends()) < 5.0
