"""How a job comes together, and who comes too late for it."""

from itertools import permutations
from pathlib import Path

import pytest

from drills.nursery import Task
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE

TASKS = [("ps", 0), ("worker", 0), ("worker", 1)]


@pytest.mark.parametrize(
    "order",
    list(permutations(TASKS)),
    ids=lambda order: ", ".join(f"{job} {index}" for job, index in order),
)
def test_tasks_start_in_any_order(
    new_job: JobMaker, script: ScriptWriter, order: list[tuple[str, int]]
) -> None:
    """Every task is up before the next is started; servers end by themselves.

    Half of the jobs have a server that runs the same script as the workers, and are told of the cluster by flags.
    """
    path = script("""
        strategy, state, step = start()
        for batch in strategy.distribute([BATCH] * 20):
            state, metrics = step(state, batch)
        tell(step=int(metrics["global_step"]))
    """)
    job = new_job(1, 2)
    has_one_script = order.index(("worker", 0)) < order.index(("worker", 1))
    tasks: dict[tuple[str, int], Task] = {}
    for name in order:
        if has_one_script:
            tasks[name] = job.start(*name, path, *job.flags(*name), TF_CONFIG="")
        else:
            tasks[name] = job.serve(0) if name[0] == "ps" else job.start(*name, path)
        tasks[name].says("serves at")
    for task in tasks.values():
        task.ends_well()
    assert max(tasks["worker", index].results()[0]["step"] for index in (0, 1)) == 20
    assert tasks["ps", 0].results() == []  # the constructor served, and never came back


def test_who_has_finished_has_nothing_left_to_do(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        strategy, state, step = start()
        tell(begins=int(state.step))
        for _ in range(5):
            state, metrics = step(state, BATCH)
        if not strategy.is_chief:
            sys.exit()
        for _ in until_there("enough"):
            state, metrics = step(state, BATCH)
    """)
    job = new_job(1, 2)
    server, chief, worker = job.serve(0), job.start("worker", 0, path), job.start("worker", 1, path)
    worker.ends_well()
    late = job.start("worker", 1, path)
    assert "nothing left to do here: /job:worker/task:1 has finished in this job" in late.ends_well()
    assert late.results() == []
    assert chief.code is None  # the others go on
    (tmp_path / "enough").touch()
    chief.ends_well()
    server.ends_well()


def test_a_worker_without_servers_or_a_chief_says_for_whom_it_waits(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    job = new_job(2, 2)
    worker = job.start("worker", 1, script("start()"))
    worker.says("/job:ps/task:0 at ")
    server = job.serve(0)
    worker.says("/job:ps/task:1 at ")
    job.serve(1)
    worker.says("/job:worker/task:1 waits for its servers: the chief has not brought the initial values (")
    assert server.code is None
