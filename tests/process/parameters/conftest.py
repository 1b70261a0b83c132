"""Jobs with parameter servers, for tests that start and kill their tasks one by one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from drills.nursery import Job, Nursery

JobMaker = Callable[[int, int], Job]


@pytest.fixture
def new_job(nursery: Nursery, tmp_path: Path) -> Iterator[JobMaker]:
    """Makes a job of so many servers and workers; what still runs is ended when the test is over."""
    with ExitStack() as stack:

        def make(ps: int, workers: int) -> Job:
            directory = tmp_path / f"job-{len(list(tmp_path.glob('job-*')))}"
            directory.mkdir()
            return stack.enter_context(nursery.job(directory, ps, workers))

        yield make
