"""Servers that die: with cuts on disk they come back, without any the job ends and says so."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.keep import Cuts


def truncate(shard: Path) -> None:
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])


def flip(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[-3] ^= 4
    shard.write_bytes(bytes(data))


@pytest.mark.parametrize(("victim", "damage"), [(1, truncate), (0, flip)])
def test_a_damaged_cut_is_passed_over(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path, victim: int, damage: Callable[[Path], None]
) -> None:
    path = script("""
        strategy, state, step = start(snapshot_dir=sys.argv[1], snapshot_secs=0.2, rejoin_timeout=60)
        for _ in until_there("enough"):
            state, metrics = step(state, BATCH)
        last = metrics["global_step"] + 20
        while int(state.step) < last:
            state, metrics = step(state, BATCH)
        tell(last=last, fetched=told(strategy.fetch(state)))
    """)
    cuts = Cuts(tmp_path / "cuts" / "model-0")
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    worker = job.start("worker", 0, path, cuts.root.parent)
    until("two cuts of steps after the first", lambda: len(set(cuts.steps()) - {0}) == 2)
    worker.kill(signal.SIGSTOP)  # without pushes there are no new cuts
    servers[victim].kill()
    *_, older, newest = cuts.steps()
    damage(cuts.path(newest) / "ps-1.safetensors")
    servers[victim] = job.serve(victim)
    worker.kill(signal.SIGCONT)
    worker.says("is back, at step")
    assert f"is back, at step {older}\n" in worker.text
    (tmp_path / "enough").touch()
    worker.ends_well()
    for server in servers:
        server.ends_well()
    leader = servers[0].text
    assert re.search(
        rf"the cut of step {newest} is skipped: .*ps-1.*\(the cut of step {older} is used instead\)",
        leader,
        re.DOTALL,
    )
    if victim == 1:  # the one who led has seen how far they were
        reached, cost = map(
            int,
            re.findall(rf"from step (\d+) to the cut of step {older}: (\d+) updates are lost", leader)[0],
        )
        assert reached - older == cost > 0
    else:
        assert f"goes on from the cut of step {older}" in leader
    told = worker.results()[0]
    assert told["fetched"]["step"] == told["last"] > older
    assert told["fetched"]["counts"] == [told["last"]]
    assert told["fetched"]["values"] == [told["last"]]


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
