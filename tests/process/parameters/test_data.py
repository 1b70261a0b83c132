"""Workers with unequal data: nobody waits for ever, and nothing is lost."""

import signal
from pathlib import Path

import pytest

from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from proofs import FUNCTIONS, Proves, column
from stratagem.keep import Snapshots

SHORT, LONG = 3, 11


@pytest.mark.parametrize(
    ("rule", "updates"),
    [
        ("sg.Async()", SHORT + LONG),
        ("sg.BoundedStaleness(1)", SHORT + LONG),
        ("sg.Sync()", LONG),
        ("sg.Sync(replicas_to_aggregate=1, total_num_replicas=2)", None),
        ("sg.Sync(replicas_to_aggregate=4)", -(-(SHORT + LONG) // 4)),
    ],
)
def test_data_that_end_early(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path, rule: str, updates: int | None, proves: Proves
) -> None:
    """The chief's data end first; it stays, without a push and without a word, until the other has finished."""
    proves(FUNCTIONS, column(f"ParameterServer {rule}"))
    path = script(f"""
        strategy, state, step = start(update={rule})
        def own(context):
            assert context.num_input_pipelines == 2
            return [BATCH] * ({SHORT}, {LONG})[context.input_pipeline_id]
        rows = 0
        for batch in strategy.distribute_from_function(own):
            state, metrics = step(state, batch)
            rows += len(batch)
        tell(rows=rows)
        if strategy.is_chief:
            wait_for("other")
            tell(fetched=summary(strategy.fetch(state)))
        strategy.close()
    """)
    job = new_job(1, 2)
    server, chief, other = job.serve(0), job.start("worker", 0, path), job.start("worker", 1, path)
    other.ends_well()
    status = job.status()["/job:ps/task:0"]["parameters"]["model-0"]
    (tmp_path / "other").touch()
    chief.ends_well()
    server.ends_well()
    assert [worker.results()[0]["rows"] for worker in (chief, other)] == [6 * SHORT, 6 * LONG]
    fetched = chief.results()[1]["fetched"]
    assert fetched["counts"] == [fetched["step"]]
    assert fetched["step"] == status["global_step"]
    dropped = sum(status["dropped"].values())
    if updates is not None:
        assert (fetched["step"], dropped) == (updates, 0)
    else:  # some came too late for their update, and were told so
        assert fetched["step"] + dropped == SHORT + LONG


def test_no_update_waits_for_a_worker_that_waits_for_the_others(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    """The chief comes to a sum of all workers early; once all have come there, they are in step as before."""
    path = script(f"""
        strategy, state, step = start(update=sg.Sync())
        for _ in range({SHORT} if strategy.is_chief else {LONG}):
            state, metrics = step(state, BATCH)
        assert strategy.reduce("sum", np.float32(2)) == 4
        for _ in range(2):
            state, metrics = step(state, BATCH)
        strategy.reduce("sum", np.float32(0))
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(1, 2)
    server, *workers = job.serve(0), *[job.start("worker", index, path) for index in range(2)]
    for task in (*workers, server):
        task.ends_well()
    for worker in workers:
        fetched = worker.results()[0]["fetched"]
        assert fetched["counts"] == [fetched["step"]] == [LONG + 2]


def test_a_worker_that_is_started_again_falls_in_step(new_job: JobMaker, script: ScriptWriter) -> None:
    """Killed between two updates, it begins its data anew, while the others wait in the middle of theirs."""
    path = script(f"""
        strategy, state, step = start(update=sg.Sync())
        for number, batch in enumerate(strategy.distribute_from_function(lambda context: [BATCH] * {LONG})):
            if number == 4 and "dies" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)
            state, metrics = step(state, batch)
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(1, 2)
    server, chief = job.serve(0), job.start("worker", 0, path)
    assert job.start("worker", 1, path, "dies").ends() == -signal.SIGKILL
    again = job.start("worker", 1, path)
    for task in (chief, again, server):
        task.ends_well()
    fetched = again.results()[0]["fetched"]
    assert fetched["counts"] == [fetched["step"]]
    assert LONG <= fetched["step"] <= LONG + 5


@pytest.mark.parametrize("rule", ["sg.BoundedStaleness(1)", "sg.Sync(replicas_to_aggregate=4)"])
def test_whose_data_have_ended_is_not_waited_for_after_a_loss_of_the_server(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path, rule: str
) -> None:
    path = script(f"""
        strategy, state, step = start(update={rule}, snapshot_dir=sys.argv[1], snapshot_secs=0.2)
        def own(context):
            yield from [BATCH] * 3
            if context.input_pipeline_id:
                yield from (BATCH for _ in until_there("enough"))
        for batch in strategy.distribute_from_function(own):
            state, metrics = step(state, batch)
        print("no more data", flush=True)
        wait_for("enough")
        tell(fetched=summary(strategy.fetch(state)))
    """)
    cuts = Snapshots(tmp_path / "cuts" / "model-0")
    job = new_job(1, 2)
    server = job.serve(0)
    chief, other = [job.start("worker", index, path, cuts.root.parent) for index in range(2)]
    chief.says("no more data")
    reached = max(cuts.steps())
    until("a later cut", lambda: max(cuts.steps()) > reached + 5)
    server.kill()
    server = job.serve(0)
    other.says("is back, at step")
    reached = max(cuts.steps())
    until("a cut after the loss", lambda: max(cuts.steps()) > reached + 5)
    (tmp_path / "enough").touch()
    for task in (chief, other, server):
        task.ends_well()
    fetched = other.results()[0]["fetched"]
    assert fetched["counts"] == [fetched["step"]]
