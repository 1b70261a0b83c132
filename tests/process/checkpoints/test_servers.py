"""Checkpoints of what lives on parameter servers: set on all at once, kept by each, and not lost with one."""

from pathlib import Path

import numpy as np

from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.errors import KeepError
from stratagem.keep import Snapshots, StoredSnapshot


def test_the_chiefs_edits_are_between_updates_and_never_half_in_a_cut(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        index = sg.resolve_cluster().task_index
        strategy, state, step = start(snapshot_dir=sys.argv[1], snapshot_secs=0.01)
        served = state.recipe.home.servers
        form, edits, mixed = served.form, 0, []
        def edit(values):
            served.assign(sg.TrainState(values, [None] * len(form.flat_opt_state), [], None, 0, state.recipe))
        while not Path(__file__).with_name("enough").exists() or (index == 0 and edits <= 20):
            if index == 0:
                edits += 1
                edit([np.full(leaf.shape, 1000 * edits, leaf.dtype) for leaf in form.flat_params])
                fetched = summary(strategy.fetch(state))
                if len(fetched["values"]) > 1:
                    mixed.append(fetched)
            state, metrics = step(state, BATCH)
        if index == 0:
            wait_for("other-is-done")
            before = summary(strategy.fetch(state))
            edit([np.full(form.flat_params[0].shape, -1, np.float32), *[None] * (len(form.flat_params) - 1)])
            tell(edits=edits, mixed=mixed, before=before, after=summary(strategy.fetch(state)))
        else:
            strategy.close()
            Path(__file__).with_name("other-is-done").touch()
    """)
    cuts = Snapshots(tmp_path / "cuts" / "model-0")
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    workers = [job.start("worker", index, path, cuts.root.parent) for index in range(2)]
    seen: dict[int, float] = {}
    until(
        "cuts of several edits", lambda: _look(cuts, seen) and len({n // 1000 for n in seen.values()}) > 2, 90
    )
    (tmp_path / "enough").touch()
    for task in [*workers, *servers]:
        task.ends_well()
    (results,) = workers[0].results()
    before, after = results["before"], results["after"]
    assert before["counts"] == [before["step"]], "an edit cost an update, or made one twice"
    assert len(before["values"]) == 1
    assert results["edits"] > 20
    assert not results["mixed"], "an update was between two servers' parts of one edit"
    assert after == {**before, "values": [-1.0, *before["values"]]}, "one array was set, and nothing else"


def _look(cuts: Snapshots, seen: dict[int, float]) -> bool:
    """Look at the newest cut: every element of every variable has had the same edits and updates."""
    step = cuts.latest()
    if step is None or step in seen:
        return True
    try:
        cut = cuts.open(step)
        numbers = _numbers(cut)
    except KeepError:  # removed meanwhile, as old ones are
        return True
    assert len(numbers) == 1, f"the cut of step {step} is of {numbers}"
    seen[step] = numbers.pop()
    return True


def _numbers(cut: StoredSnapshot) -> set[float]:
    names = [name for name in cut.names if name.startswith("params/")]
    assert len(names) == 4
    return {float(number) for name in names for number in np.unique(cut.read(name))}


SAVING = """
        strategy, state, step = start(snapshot_dir=sys.argv[1], snapshot_secs=600, rejoin_timeout=60)
        checkpoints = sg.Checkpointer(sys.argv[2])
        state = checkpoints.restore(like=state) or state
        print("begins at", int(state.step), flush=True)
"""


def test_a_chief_that_comes_back_leaves_servers_that_are_ahead(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script(f"""{SAVING}        while int(state.step) < 10:
            state, _ = step(state, BATCH)
        if int(state.step) == 10:
            checkpoints.save(state)
            checkpoints.wait()
            for _ in range(7):
                state, _ = step(state, BATCH)
            print("has saved", flush=True)
            wait_for("never")
        state, _ = step(state, BATCH)
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    worker = job.start("worker", 0, path, tmp_path / "cuts", tmp_path / "checkpoints")
    worker.says("has saved")
    assert "begins at 0" in worker.text
    worker.kill()
    worker = job.start("worker", 0, path, tmp_path / "cuts", tmp_path / "checkpoints")
    worker.ends_well()
    assert "begins at 17" in worker.text
    assert worker.results()[0]["fetched"] == {"step": 18, "counts": [18.0], "values": [18.0]}
    for server in servers:
        server.ends_well()


def test_what_was_restored_is_not_lost_with_a_server(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script(f"""{SAVING}        if "first" in sys.argv:
            for _ in range(6):
                state, _ = step(state, BATCH)
            checkpoints.save(state)
        else:
            state, _ = step(state, BATCH)
            print("has restored", flush=True)
            wait_for("go")
            state, _ = step(state, BATCH)  # void: the servers went back
            state, metrics = step(state, BATCH)
            tell(fetched=summary(strategy.fetch(state)), lost_updates=metrics["lost_updates"])
            print("has trained", flush=True)
            wait_for("end")
    """)
    first, again = new_job(1, 1), new_job(2, 1)
    server = first.serve(0)
    first.start("worker", 0, path, tmp_path / "first", tmp_path / "checkpoints", "first").ends_well()
    server.ends_well()
    servers = [again.serve(index) for index in range(2)]
    worker = again.start("worker", 0, path, tmp_path / "again", tmp_path / "checkpoints")
    worker.says("has restored")
    assert "begins at 6" in worker.text
    servers[1].kill()
    servers[1] = again.serve(1)
    (tmp_path / "go").touch()
    worker.says("has trained")
    status = again.status()["/job:ps/task:0"]["parameters"]["model-0"]
    assert status["last_loss"] == {"from": 7, "to": 6, "updates": 1}
    assert "model-0 goes on from the snapshot of step 6: 1 updates lost" in servers[0].text
    (tmp_path / "end").touch()
    worker.ends_well()
    lost = "1 update(s) are lost with a server: all have gone back from step 7 to the snapshot of step 6\n"
    assert f"/job:worker/task:0: {lost}" in worker.text
    assert "is back, at step 6\n" in worker.text
    assert worker.results()[0]["fetched"] == {"step": 7, "counts": [7.0], "values": [7.0]}
    assert worker.results()[0]["lost_updates"] == 1
    for server in servers:
        server.ends_well()


def test_servers_that_cannot_reach_the_directory_send_what_they_hold(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        os.chdir(Path(__file__).parent)
        strategy, state, step = start()
        for _ in range(3):
            state, _ = step(state, BATCH)
        checkpoints = sg.Checkpointer("/proc/self/cwd/checkpoints")  # another place for every process
        checkpoints.save(state)
        strategy.close()
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    job.start("worker", 0, path).ends_well()
    for server in servers:
        server.ends_well()
    cut = Snapshots(tmp_path / "checkpoints").newest_readable()
    assert cut is not None and cut.step == 3
    assert [record.shard for record in cut.manifest.shards] == ["chief"]
    assert _numbers(cut) == {3.0}


def test_a_server_that_holds_nothing_does_its_part(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy(snapshot_dir=sys.argv[1], snapshot_secs=600)
        state = strategy.init(initial(1), optimizer())
        step = strategy.train_step(loss_fn)
        checkpoints = sg.Checkpointer(sys.argv[2])
        for _ in range(2):
            state, _ = step(state, BATCH)
            checkpoints.save(state)
        state = checkpoints.restore(like=state, step=1)
        state, _ = step(state, BATCH)
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    worker = job.start("worker", 0, path, tmp_path / "cuts", tmp_path / "checkpoints")
    worker.ends_well()
    assert worker.results()[0]["fetched"] == {"step": 2, "counts": [2.0], "values": [2.0]}
    for server in servers:
        assert "Traceback" not in server.ends_well()
    cuts = Snapshots(tmp_path / "checkpoints")
    assert cuts.steps() == [1, 2]
    assert sorted(record.shard for record in cuts.open(2).manifest.shards) == ["chief", "ps-0", "ps-1"]
    assert Snapshots(tmp_path / "cuts" / "model-0").steps() == [0, 1]
