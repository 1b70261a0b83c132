"""Servers that die: with cuts on disk they come back, without any the job ends and says so."""

import pytest

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE


@pytest.mark.parametrize(("servers", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_without_cuts_a_lost_server_ends_the_job(
    new_job: JobMaker, script: ScriptWriter, servers: int, victim: int
) -> None:
    path = script("""
        strategy, state, step = start(rejoin_timeout=20)
        for number, _ in enumerate(until_there("never")):
            state, metrics = step(state, BATCH)
            if number == 10:
                print("under way", flush=True)
            assert metrics["global_step"] > number, "it began anew without a word"
    """)
    job = new_job(servers, 1)
    serving = [job.serve(index) for index in range(servers)]
    worker = job.start("worker", 0, path)
    worker.says("under way")
    serving[victim].kill()
    worker.says("lost its servers")
    job.serve(victim)
    assert worker.ends() == 1
    assert f"errors.TaskLost: /job:ps/task:{victim} was lost with its part of model 'model-0'" in worker.text
    assert "there is no snapshot to go back to: give the strategy a snapshot_dir" in worker.text
