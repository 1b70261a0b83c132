"""A worker that is slower than the others: whom it holds back, and whom it does not."""

from pathlib import Path

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE

LAST = 50
SLOW = f"""
    strategy, state, step = start(update=eval(sys.argv[1]))
    index, pushes, busy = sg.resolve_cluster().task_index, 0, 0.0
    state, metrics = step(state, BATCH)
    pushes = 1
    tell(first=metrics["global_step"])
    wait_for("all")
    while int(state.step) < {LAST}:
        began = time.monotonic()
        state, metrics = step(state, BATCH)
        pushes += 1
        if index == 2:
            time.sleep(9 * (time.monotonic() - began))  # ten times as slow
    tell(pushes=pushes)
    wait_for("seen")
"""


def run(new_job: JobMaker, path: Path, rule: str) -> tuple[list[int], dict[str, object]]:
    """The pushes of three workers, the last of them slow, and what server 0 says of the model."""
    job = new_job(2, 3)
    servers = [job.serve(index) for index in range(2)]
    workers = [job.start("worker", index, path, rule) for index in range(3)]
    for worker in workers:
        worker.says('"first"')
    (path.parent / "all").touch()
    for worker in workers:
        worker.says('"pushes"')
    status = job.status()["/job:ps/task:0"]["parameters"]["model-0"]
    (path.parent / "seen").touch()
    for task in (*workers, *servers):
        task.ends_well()
    return [worker.results()[-1]["pushes"] for worker in workers], status


def test_asynchronous_training_is_not_held_back(new_job: JobMaker, script: ScriptWriter) -> None:
    pushes, status = run(new_job, script(SLOW), "sg.Async()")
    assert pushes[2] < min(pushes[:2]) / 2
    assert sum(pushes) == status["global_step"]
    assert status["dropped"] == {}
    staleness = status["staleness"]
    assert isinstance(staleness, dict)
    assert sum(staleness.values()) == sum(pushes)
    assert set(staleness) - {"0"}  # three at once: some gradients were of an older step


def test_a_backup_worker_keeps_the_slow_one_from_holding_all_back(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    pushes, status = run(new_job, script(SLOW), "sg.Sync(replicas_to_aggregate=2, total_num_replicas=3)")
    assert status["global_step"] == LAST
    assert pushes[2] < min(pushes[:2])
    dropped = status["dropped"]
    assert isinstance(dropped, dict)
    assert dropped["/job:worker/task:2"] > 0
    assert sum(pushes) == 2 * LAST + sum(dropped.values())  # nothing is lost unsaid
    assert status["staleness"] == {"0": 2 * LAST}


def test_who_is_waited_for_is_named(new_job: JobMaker, script: ScriptWriter, tmp_path: Path) -> None:
    """Two jobs at once, on one machine: neither knows of the other."""
    path = script("""
        strategy, state, step = start(update=eval(sys.argv[1]))
        index, pushes = sg.resolve_cluster().task_index, 0
        for pushes in range(1, 21):
            if index == 1 and pushes == 4:
                wait_for("seen")
            state, metrics = step(state, BATCH)
            print("pushed", pushes, flush=True)
        tell(fetched=told(strategy.fetch(state)))
    """)
    # Pushes that worker 0 gets an answer to while worker 1 stands still after 3; and updates that are made by then.
    expected = {"sg.Sync()": (3, 3), "sg.BoundedStaleness(4)": (7, 11)}
    started = {}
    for rule in expected:
        job = new_job(1, 2)
        started[rule] = (job, job.serve(0), [job.start("worker", index, path, rule) for index in range(2)])
    for rule, (answered, updates) in expected.items():
        job, _, (waiting, slow) = started[rule]
        waiting.says("/job:worker/task:0 waits for /job:worker/task:1 (")
        assert f"pushed {answered}\n" in waiting.text
        assert f"pushed {answered + 1}\n" not in waiting.text
        assert "pushed 3\n" in slow.text
        status = job.status()["/job:ps/task:0"]["parameters"]["model-0"]
        assert status["global_step"] == updates
        assert status["rule"].startswith(rule.removeprefix("sg.").partition("(")[0])
        if rule == "sg.Sync()":
            assert status["waits_for"] == ["/job:worker/task:1"]
    (tmp_path / "seen").touch()
    for rule, (_, server, workers) in started.items():
        for worker in workers:
            worker.ends_well()
        server.ends_well()
        step = 20 if rule == "sg.Sync()" else 40
        assert max(worker.results()[0]["fetched"]["step"] for worker in workers) == step
