"""Who speaks for a task: the newer of two starts of a worker, and the chief for the model."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from drills.nursery import Job, Nursery, Task
from hosts import simulated_hosts
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.tools.launch.job_shape import tf_config
from stratagem.tools.launch.tasks import TaskName

SECOND = TaskName("worker", 1)


JobElsewhere = tuple[Job, Callable[[], Task]]
"""A job of a server and two workers, and what starts the second worker once more, at another address."""
SCRIPT = """
    strategy, state, step = start()
    answered = Path(__file__).with_name(f"answered-{strategy.workers.index}-{strategy.workers.server.incarnation}")
    for pushes, _ in enumerate(until_there("end"), start=1):
        state, metrics = step(state, BATCH)
        answered.write_text(str(pushes))
        if pushes == 3:
            print("under way", flush=True)
    tell(fetched=summary(strategy.fetch(state)))
    strategy.close()
"""


@contextmanager
def on_one_host(nursery: Nursery, directory: Path, path: Path) -> Iterator[JobElsewhere]:
    with nursery.job(directory, 1, 2) as job:
        yield job, partial(_start_at, job, path, "127.0.0.1:0")


@contextmanager
def on_hosts_of_their_own(nursery: Nursery, directory: Path, path: Path) -> Iterator[JobElsewhere]:
    with simulated_hosts(4) as (*hosts, other), nursery.job(directory, 1, 2, hosts) as job:

        def start() -> Task:
            job.hosts[SECOND] = other
            return _start_at(job, path, f"{other.address}:2222")

        yield job, start


def _start_at(job: Job, path: Path, address: str) -> Task:
    return job.start("worker", 1, path, TF_CONFIG=tf_config(SECOND, {**job.addresses, SECOND: address}))


@pytest.mark.parametrize("where", [on_one_host, on_hosts_of_their_own])
def test_the_newer_start_of_a_worker_wins_once_and_the_older_is_told(
    where: Callable[[Nursery, Path, Path], AbstractContextManager[JobElsewhere]],
    nursery: Nursery,
    script: ScriptWriter,
) -> None:
    path = script(SCRIPT)
    with where(nursery, path.parent, path) as (job, start_again):
        server = job.serve(0)
        chief, older = (job.start("worker", index, path) for index in range(2))
        for worker in (chief, older):
            worker.says("under way")
        newer = start_again()
        newer.says("under way")
        assert older.ends() == 1
        assert "/job:worker/task:1 was started again while this start of it was still running" in older.text
        assert "Traceback" not in older.text
        (path.parent / "end").touch()
        for worker in (chief, newer):
            worker.ends_well()
            (found,) = worker.results()
            assert found["fetched"]["counts"] == [found["fetched"]["step"]]
        assert server.ends_well().count("/job:worker/task:1 was restarted") == 1
    answered = sum(int(each.read_text()) for each in path.parent.glob("answered-*"))
    # The older start may have been told that it is replaced in the place of one answer.
    last = max(found["fetched"]["step"] for worker in (chief, newer) for found in worker.results())
    assert answered <= last <= answered + 1


def test_a_farewell_of_the_older_start_does_not_end_the_newer(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    path = script("""
        strategy, state, step = start()
        state, _ = step(state, BATCH)
        print("under way", flush=True)
        if len(sys.argv) > 1:
            wait_for("other")
            strategy.close()
        else:
            for number in range(20):
                state, _ = step(state, BATCH)
            strategy.close()
    """)
    job = new_job(1, 1)
    server = job.serve(0)
    older = job.start("worker", 0, path, "waits")
    older.says("under way")
    elsewhere = {**job.addresses, TaskName("worker", 0): "127.0.0.1:0"}
    newer = job.start("worker", 0, path, "waits", TF_CONFIG=tf_config(TaskName("worker", 0), elsewhere))
    newer.says("under way")
    older.says("was started again while this start")
    (path.parent / "other").touch()
    older.ends()
    newer.ends_well()
    server.ends_well()


def test_the_chief_defines_the_model_whoever_comes_first(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        rows = int(sys.argv[1])
        strategy = sg.ParameterServerStrategy()
        print("comes", flush=True)
        state, step = strategy.init(initial(rows=rows), optimizer()), strategy.train_step(loss_fn)
        for number in range(5):
            state, _ = step(state, BATCH)
        print("trained", flush=True)
        wait_for("end")
        strategy.close()
    """)
    job = new_job(2, 3)
    servers = [job.serve(index) for index in range(2)]
    wrong = job.start("worker", 1, path, 5)
    wrong.says("waits for its servers: the chief has not brought the initial values")
    chief, right = job.start("worker", 0, path, 3), job.start("worker", 2, path, 3)
    assert wrong.ends() == 1
    assert "brings another model than the one on /job:ps/task:" in wrong.text
    for worker in (chief, right):
        worker.says("trained")
    (path.parent / "end").touch()
    for worker in (chief, right):
        worker.ends_well()
    for server in servers:
        server.kill()
