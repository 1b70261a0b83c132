"""Connections that break and links that are cut: training goes on, and no push counts twice or not at all."""

import contextlib
from pathlib import Path

import pytest

from drills.nursery import Nursery
from hosts import simulated_hosts
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from process.parameters.proxy import BadLine
from stratagem.tools.launch.job_shape import tf_config
from stratagem.tools.launch.tasks import TaskName

PUSHES = 60


@pytest.mark.parametrize(("rule", "updates"), [("sg.Async()", 2 * PUSHES), ("sg.Sync()", PUSHES)])
def test_connections_that_break_at_any_byte(
    new_job: JobMaker, script: ScriptWriter, rule: str, updates: int
) -> None:
    path = script(f"""
        strategy, state, step = start(update={rule})
        batches = strategy.distribute_from_function(lambda context: [BATCH] * {PUSHES})
        for number, batch in enumerate(batches):
            state, metrics = step(state, batch)
            if number == 2:
                print("under way", flush=True)
                wait_for("bad")
            if {rule} == sg.Sync():
                assert float(strategy.reduce("sum", np.float32(number))) == 2 * number
        print("done", flush=True)
        wait_for("good")
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    with contextlib.ExitStack() as stack:
        lines = [
            stack.enter_context(BadLine(job.addresses[TaskName("ps", index)], index, 4_000, 9_000))
            for index in range(2)
        ]
        seen = {**job.addresses, **{TaskName("ps", index): lines[index].address for index in range(2)}}
        workers = [
            job.start(
                "worker",
                index,
                path,
                TF_CONFIG=tf_config(TaskName("worker", index), seen),
                STRATAGEM_SHM="off",
            )
            for index in range(2)
        ]
        for worker in workers:
            worker.says("under way")
        for line in lines:
            line.turn_bad()
        (path.parent / "bad").touch()
        for worker in workers:
            worker.says("done")
        for line in lines:
            line.heal()
        (path.parent / "good").touch()
        for worker in workers:
            worker.ends_well()
        assert min(line.broken for line in lines) >= 5
    for server in servers:
        server.ends_well()
    for worker in workers:
        fetched = worker.results()[0]["fetched"]
        assert (fetched["step"], fetched["counts"]) == (updates, [updates])


def test_a_link_that_is_cut_and_healed(nursery: Nursery, script: ScriptWriter, tmp_path: Path) -> None:
    """Two servers and a worker, each on a host of its own; the link of the second server is cut."""
    path = script("""
        strategy, state, step = start()
        pushes = 0
        for _ in until_there("enough"):
            state, metrics = step(state, BATCH)
            pushes += 1
            if pushes == 20:
                print("under way", flush=True)
        tell(pushes=pushes, fetched=summary(strategy.fetch(state)))
    """)
    with simulated_hosts(3) as hosts, nursery.job(tmp_path, 2, 1, hosts) as job:
        servers = [job.serve(index) for index in range(2)]
        worker = job.start("worker", 0, path)
        worker.says("under way")
        hosts[1].cut()
        worker.says("lost its servers and tries to come back")
        hosts[1].heal()
        worker.says("is back, at step")
        (tmp_path / "enough").touch()
        for task in (worker, *servers):
            task.ends_well(60)
    (told,) = worker.results()
    assert told["fetched"]["step"] == told["pushes"] > 20
    assert told["fetched"]["counts"] == [told["pushes"]]
