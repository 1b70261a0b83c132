"""A server works for a worker on the cores of that worker, which waits meanwhile."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.devices.cores import stay_with

CORES = sorted(os.sched_getaffinity(0))
SLEEPER = "import os, sys; os.sched_setaffinity(0, eval(sys.argv[1])); print(flush=True); sys.stdin.read()"

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="there is one core for all")


@contextmanager
def bound_process(cores: list[int]) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(cores)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin:
        process.stdout.readline()
        yield process.pid


def cores_after(process: int) -> list[int]:
    """Where a new thread of this process is once it stays with another process."""

    def stay() -> list[int]:
        stay_with(process)
        return sorted(os.sched_getaffinity(0))

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(stay).result()


def test_a_thread_stays_with_a_process_that_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with bound_process(CORES[1:2]) as process:
        assert cores_after(process) == CORES[1:2]
        assert sorted(os.sched_getaffinity(0)) == CORES, "other threads are where they were"
        monkeypatch.setenv("STRATAGEM_PIN", "off")
        assert cores_after(process) == CORES
        monkeypatch.delenv("STRATAGEM_PIN")
    assert cores_after(process) == CORES, "it has ended"
    with bound_process(CORES) as process:
        assert cores_after(process) == CORES


@pytest.mark.skipif(len(CORES) != os.cpu_count(), reason="somebody has bound this process")
def test_every_worker_is_served_where_it_waits(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        strategy, state, step = start()
        for _ in until_there("seen"):
            state, metrics = step(state, BATCH)
            if int(metrics["global_step"]) > 20:
                tell(cores=sorted(os.sched_getaffinity(0)))
    """)
    job = new_job(1, 2)
    server = job.serve(0)
    workers = [job.start("worker", index, path) for index in range(2)]
    for worker in workers:
        worker.says("cores")
    threads = Path(f"/proc/{server.pid}/task").iterdir()
    found = {tuple(sorted(os.sched_getaffinity(int(thread.name)))) for thread in threads}
    path.with_name("seen").touch()
    for task in (*workers, server):
        task.ends_well()
    expected = {tuple(worker.results()[0]["cores"]) for worker in workers}
    assert len(expected) == 2
    assert found == {tuple(CORES), *expected}
