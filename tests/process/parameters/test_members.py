"""Workers that come late, leave early, die or fall silent, while the others go on."""

import re
import signal
from pathlib import Path

from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.keep import Snapshots


def test_jobs_go_on_without_those_who_do_not_come_back(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    """Nobody starts the dead again. An asynchronous job loses its chief and more, a synchronous one a worker."""
    path = script("""
        index = sg.resolve_cluster().task_index
        strategy, state, step = start(update=eval(sys.argv[1]), rejoin_timeout=8)
        tell(begins=int(state.step))
        state, metrics = step(state, BATCH)
        print("under way", flush=True)
        pushes = 1
        for _ in until_there(f"enough-{index}"):
            state, metrics = step(state, BATCH)
            pushes += 1
        tell(pushes=pushes, step=metrics["global_step"], fetched=summary(strategy.fetch(state)))
    """)
    job, sync = new_job(2, 4), new_job(1, 2)
    servers = [job.serve(index) for index in range(2)]
    chief, frozen, steady = [job.start("worker", index, path, "sg.Async()") for index in range(3)]
    others = [sync.serve(0), sync.start("worker", 0, path, "sg.Sync()")]
    victim = sync.start("worker", 1, path, "sg.Sync()")
    for worker in (chief, frozen, steady, victim):
        worker.says("under way")
    chief.kill()
    frozen.kill(signal.SIGSTOP)
    victim.kill()

    # One that joins late begins where the others are, and may leave before them.
    late = job.start("worker", 3, path, "sg.Async()")
    late.says("under way")
    (tmp_path / "enough-3").touch()
    late.ends_well()
    begins, ended = late.results()
    assert begins["begins"] >= 3  # the first push of each had been applied
    assert ended["fetched"]["counts"] == [ended["fetched"]["step"]]

    for index in (0, 1):
        servers[0].says(f"/job:worker/task:{index} has been silent for 8 s and is given up")
    again = job.start("worker", 0, path, "sg.Async()")
    assert "nothing left to do here: /job:worker/task:0 has been given up in this job" in again.ends_well()
    assert again.results() == []
    others[0].says("/job:worker/task:1 has been silent for 8 s and is given up")

    (tmp_path / "enough-2").touch()
    (tmp_path / "enough-0").touch()
    for task in (steady, *servers, *others):
        task.ends_well()
    for worker in (steady, others[1]):
        fetched = worker.results()[-1]["fetched"]
        assert fetched["counts"] == [fetched["step"]]
    assert steady.results()[-1]["step"] >= steady.results()[-1]["pushes"] + ended["pushes"] + 2

    # One that was away for all of that finds nobody, and says what that may mean.
    frozen.kill(signal.SIGCONT)
    assert frozen.ends() == 1
    assert "the parameter servers could not be reached for" in frozen.text
    assert "Either they are not running, or the job is over" in frozen.text


def test_a_chief_is_told_whose_model_it_finds_and_a_job_without_workers_fails(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    """The chief is started by hand, by whoever restarts it, and dies each time; then nobody comes any more."""
    path = script("""
        strategy, state, step = start(rejoin_timeout=10)
        for _ in range(5):
            state, metrics = step(state, BATCH)
        print("under way", flush=True)
        signal.pause()
    """)
    job = new_job(2, 1)
    servers = [job.serve(0), job.start("ps", 1, path)]
    found = "/job:worker/task:0 finds model-0 trained to step 5 already (/job:ps/task:0 at 127.0.0.1:"
    for generation, finds in [("0", False), ("0", True), ("1", False)]:
        chief = job.start("worker", 0, path, STRATAGEM_GENERATION=generation, STRATAGEM_LOG="warning")
        chief.says("under way")
        assert (found in chief.text) == ("trained to step" in chief.text) == finds, chief.text
        chief.kill()
    servers[0].says("/job:worker/task:0 has been silent for 10 s and is given up; no worker is left")
    for server in servers:
        assert server.ends() == 1
        assert (
            "the job has failed: /job:worker/task:0 did not come back, and no worker has finished"
            in server.text
        )
        assert "goes on without it" not in server.text


def test_a_target_is_passed_by_at_most_the_other_workers(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        strategy, state, step = start()
        pushes = 0
        while int(state.step) < 60:
            state, metrics = step(state, BATCH)
            pushes += 1
        tell(pushes=pushes, fetched=summary(strategy.fetch(state)))
        strategy.close()
        strategy.close()
    """)
    job = new_job(2, 3)
    servers = [job.serve(index) for index in range(2)]
    workers = [job.start("worker", index, path) for index in range(3)]
    for task in (*workers, *servers):
        task.ends_well()
    told = [worker.results()[0] for worker in workers]
    last = max(each["fetched"]["step"] for each in told)
    assert 60 <= last <= 62
    assert last == sum(each["pushes"] for each in told)
    for each in told:  # while others were still pushing
        assert each["fetched"]["counts"] == [each["fetched"]["step"]]
        assert each["fetched"]["values"] == [each["fetched"]["step"]]


def test_who_has_finished_is_not_waited_for_after_a_loss_of_the_server(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    """The new server 0 hears of the end of one worker before it hears of the model."""
    path = script("""
        strategy, state, step = start(update=sg.Sync(), snapshot_dir=sys.argv[1], snapshot_secs=0.2)
        index = sg.resolve_cluster().task_index
        for _ in until_there("enough"):
            state, metrics = step(state, BATCH)
            if index == 1 and int(state.step) >= 10:
                break
        tell(fetched=summary(strategy.fetch(state)))
    """)
    cuts = Snapshots(tmp_path / "cuts" / "model-0")
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    chief, other = [job.start("worker", index, path, cuts.root.parent) for index in range(2)]
    other.ends_well()
    chief.kill(signal.SIGSTOP)
    servers[0].kill()
    servers[0] = job.serve(0)
    servers[0].says("serves at")
    until(
        "server 1 to have told server 0 who has finished",
        lambda: "/job:ps/task:1" in job.status()["/job:ps/task:0"]["roster"],
    )
    chief.kill(signal.SIGCONT)
    chief.says("is back, at step")
    cost = re.search(
        r"/task:0: (\d+) update\(s\) are lost with a server: all have gone back from step (\d+) to the snapshot of step (\d+)",
        chief.text,
    )
    assert cost is not None, chief.text  # the one who led has forgotten how far they were
    lost, before, after = map(int, cost.groups())
    assert lost == before - after >= 0 and before >= 10
    reached = max(cuts.steps())
    until("the chief to train alone", lambda: max(cuts.steps()) > reached + 5)
    (tmp_path / "enough").touch()
    for task in (chief, *servers):
        task.ends_well()
    fetched = chief.results()[0]["fetched"]
    assert fetched["counts"] == [fetched["step"]]


def test_what_is_fetched_is_of_one_step(new_job: JobMaker, script: ScriptWriter, tmp_path: Path) -> None:
    """Two workers fetch again and again, from two servers, while a third one pushes."""
    path = script("""
        strategy, state, step = start()
        if sg.resolve_cluster().task_index == 2:
            for _ in until_there("enough"):
                state, metrics = step(state, BATCH)
        else:
            found = []
            while len({each["step"] for each in found}) < 15:
                found.append(summary(strategy.fetch(state)))
            tell(found=found)
    """)
    job = new_job(2, 3)
    servers = [job.serve(index) for index in range(2)]
    *fetching, pushing = [job.start("worker", index, path) for index in range(3)]
    for worker in fetching:
        worker.ends_well()
        (told,) = worker.results()
        steps = [each["step"] for each in told["found"]]
        assert steps == sorted(steps)
        assert all(each["counts"] == each["values"] == [each["step"]] for each in told["found"])
    (tmp_path / "enough").touch()
    for task in (pushing, *servers):
        task.ends_well()
