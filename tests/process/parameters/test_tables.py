"""Tables whose rows live on parameter servers: the same numbers as elsewhere, every row once, and what mistakes say."""

import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file

from drills.counting_job import CountingJob
from drills.nursery import DEADLINE, Nursery
from drills.processes import until
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as COMMON
from proofs import TABLES, Proves, column
from stratagem.tools.launch.status import status_tables

PRELUDE = (
    COMMON
    + """
ROWS, DIM, STEPS = 40, 3, 200
LARGE = np.array([-(2**63), -7, -1, 0, 1, 2**31, 2**40 + 5, 2**63 - 1])
adagrad = optax.adagrad(0.3)

def batches(ids=None, steps=STEPS):
    random = np.random.default_rng(0)
    for _ in range(steps):
        number = random.zipf(1.5, (8, 2)) % ROWS
        yield {"id": number if ids is None else ids[number % len(ids)], "y": random.normal(size=8).astype(np.float32)}

def error_of(params, vectors, batch):
    return ((vectors.sum(axis=1) @ params["w"] - batch["y"]) ** 2).mean()

def loss_of_rows(params, batch, rows):
    return error_of(params, rows["users"](batch["id"]), batch)

def loss_of_matrix(params, batch):
    return error_of(params, params["users"][batch["id"]], batch)

def train(strategy, table, ids=None, steps=STEPS):
    weights = {"w": np.ones(DIM, np.float32)}
    state = strategy.init(weights, adagrad, tables=[table])
    first = strategy.table(state, "users").lookup(np.arange(ROWS))
    step = strategy.train_step(loss_of_rows)
    for batch in strategy.distribute(batches(ids, steps)):
        state, metrics = step(state, batch)
    return state, first

def train_dense(first):
    strategy = sg.OneDeviceStrategy()
    state = strategy.init({"w": np.ones(DIM, np.float32), "users": first}, adagrad)
    step = strategy.train_step(loss_of_matrix)
    for batch in strategy.distribute(batches()):
        state, metrics = step(state, batch)
    return strategy.fetch(state).params

def pages(view, size):
    ids, values = map(np.concatenate, zip(*view.items(size=size)))
    order = np.argsort(ids)
    return ids[order], values[order]
"""
)


def test_workers_in_step_train_as_a_dense_matrix_does_and_as_one_device(
    new_job: JobMaker, script: ScriptWriter, proves: Proves
) -> None:
    proves(TABLES, "Sync")
    proves(TABLES, "OneDevice")
    path = script("""
        strategy = sg.ParameterServerStrategy(update=sg.Sync())
        table = sg.Table("users", DIM, rows=ROWS)
        state, first = train(strategy, table)
        weights, found = strategy.fetch(state).params["w"], strategy.table(state, "users").lookup(np.arange(ROWS))
        seen = np.unique([batch["id"] for batch in batches()])
        ids, values = pages(strategy.table(state, "users"), 7)
        assert ids.tolist() == seen.tolist() and len(strategy.table(state, "users")) == len(seen)
        assert values.tobytes() == found[seen].tobytes()
        strategy.close()
        if strategy.is_chief:
            close = dict(rtol=1e-4, atol=1e-5)
            dense = train_dense(first)
            np.testing.assert_allclose(found, dense["users"], **close)
            np.testing.assert_allclose(weights, dense["w"], **close)
            assert np.abs(found - first).max() > 0.1
            alone = sg.OneDeviceStrategy()
            state, same = train(alone, table)
            assert same.tobytes() == first.tobytes()
            np.testing.assert_allclose(found, alone.table(state, "users").lookup(np.arange(ROWS)), **close)
            np.testing.assert_allclose(weights, alone.fetch(state).params["w"], **close)
        print("the same")
    """)
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    for worker in [job.start("worker", index, path) for index in range(2)]:
        assert "the same" in worker.ends_well()
    for server in servers:
        server.ends_well()


def test_overlapping_pushes_train_on_rows_that_are_one_update_old(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    path = script("""
        from stratagem.parameters.client import ServerClient

        asked, pull = [], ServerClient.pull_rows
        ServerClient.pull_rows = lambda *given, **named: asked.append(1) or pull(*given, **named)
        sgd, w = optax.sgd(0.02), np.ones(DIM, np.float32)
        strategy = sg.ParameterServerStrategy(update=sg.Async(overlap=True))
        state = strategy.init({"w": w}, sgd, tables=[sg.Table("users", DIM, rows=ROWS)])
        view = strategy.table(state, "users")
        dense = [{"w": w, "users": view.lookup(np.arange(ROWS))}]
        step = strategy.train_step(loss_of_rows)
        asked.clear()
        for number, batch in enumerate(strategy.distribute(batches(steps=40))):
            state, metrics = step(state, batch)
            # The first two find no push that brings their rows; from then on one is under way while the next computes.
            gradients = jax.grad(loss_of_matrix)(dense[number if number < 2 else -2], batch)
            dense.append(jax.tree.map(lambda value, gradient: value - 0.02 * gradient, dense[-1], gradients))
        assert len(asked) == 2, asked
        assert metrics["global_step"] in (38, 39)
        close = dict(rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(view.lookup(np.arange(ROWS)), dense[-1]["users"], **close)
        assert np.abs(dense[-1]["users"] - dense[-2]["users"]).max() > 1e-4
        fetched = strategy.fetch(state)
        np.testing.assert_allclose(fetched.params["w"], dense[-1]["w"], **close)
        assert fetched.step == 40
        for _ in range(3):
            state, metrics = step(state, batch)  # nothing tells the batch beforehand
        assert strategy.fetch(state).step == 43
        strategy.close()
        print("the same")
    """)
    job = new_job(1, 1)
    server, worker = job.serve(0), job.start("worker", 0, path)
    assert "the same" in worker.ends_well()
    server.ends_well()


@pytest.mark.parametrize("rule", ["sg.Async()", "sg.BoundedStaleness(1)"])
def test_one_worker_has_the_bits_of_one_device_for_ids_of_all_sizes(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path, rule: str, proves: Proves
) -> None:
    proves(TABLES, column(f"ParameterServer {rule}"))
    path = script(f"""
        table = sg.Table("users", DIM)
        strategy = sg.ParameterServerStrategy(update={rule})
        state, _ = train(strategy, table, LARGE)
        view, weights = strategy.table(state, "users"), strategy.fetch(state).params["w"]
        ids, values = pages(view, 3)
        assert ids.tolist() == LARGE.tolist() and len(view) == len(LARGE)
        view.export(Path(__file__).with_name("users.safetensors"))
        tell(trained=True)
        wait_for("seen")
        strategy.close()
        alone = sg.OneDeviceStrategy()
        state, _ = train(alone, table, LARGE)
        assert weights.tobytes() == alone.fetch(state).params["w"].tobytes()
        assert values.tobytes() == pages(alone.table(state, "users"), 3)[1].tobytes()
        assert values.tobytes() == alone.table(state, "users").lookup(LARGE).tobytes()
        np.save(Path(__file__).with_name("rows"), values)
        print("the same")
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    worker = job.start("worker", 0, path)
    worker.says("told")
    status = job.status()
    (tmp_path / "seen").touch()
    assert "the same" in worker.ends_well()
    for server in servers:
        server.ends_well()
    held = [status[f"/job:ps/task:{index}"]["parameters"]["model-0"]["tables"] for index in range(2)]
    assert all(each["name"] == "users" and each["dim"] == 3 for (each,) in held)
    assert sum(each["rows"] for (each,) in held) == 8
    assert all(0 < each["rows"] < 8 for (each,) in held)
    with (console := Console(width=200)).capture() as shown:
        console.print(status_tables(status, {}))
    assert re.search(r"users +│ float32 +│ 3 +│ [1-7] +│ .* B +│ 0 +│ 0 +│ /job:ps/task:1", shown.get())
    exported = load_file(tmp_path / "users.safetensors")
    order = np.argsort(exported["ids"])
    assert exported["values"][order].tobytes() == np.load(tmp_path / "rows.npy").tobytes()


@pytest.mark.parametrize("rule", ["async", "async, overlapping"])
def test_a_server_that_was_killed_goes_on_with_its_rows(nursery: Nursery, rule: str) -> None:
    """Each row counts its updates: in the end they are as many as the step says."""
    with CountingJob(rule, restarts=1, nursery=nursery, has_table=True) as job:
        job.wait_for(1)
        (place,) = re.findall(r"a snapshot of step 0 is in (\S+)", job.log)
        until(
            "a snapshot that has rows", lambda: len(list(Path(place).glob("*/manifest.json"))) > 1, DEADLINE
        )
        assert job.kill("ps:1")
        job.set_target(further=30)
        assert job.problem() is None, job.log
        assert re.search(r"goes on from the snapshot of step [1-9]\d*: \d+ updates lost", job.log), job.log


def test_an_id_out_of_range_ends_the_job_and_is_named(nursery: Nursery, script: ScriptWriter) -> None:
    """At the step of its own batch, though rows of a batch are asked for during the step before."""
    path = script("""
        strategy = sg.ParameterServerStrategy()
        state = strategy.init({"w": np.ones(DIM, np.float32)}, adagrad, tables=[sg.Table("users", DIM, rows=ROWS)])
        step = strategy.train_step(loss_of_rows)
        ids = [[[1, 2]], [[2, 3]], [[3, ROWS]]]
        for batch in strategy.distribute({"id": np.array(each), "y": np.ones(1, np.float32)} for each in ids):
            state, metrics = step(state, batch)
            tell(step=metrics["global_step"])
    """)
    done = nursery.outcome("stratagem", "run", "--ps", 1, "--workers", 1, path)
    assert done.returncode == 1
    assert re.findall(r'"step": (\d)', done.stdout) == ["1", "2"]
    assert (
        "DataError: table 'users' has rows=40, so its ids are 0 to 39; batch['id'][0, 1] is 40. Give the table more rows, or "
        "rows=None for any ids"
    ) in done.stderr, done.stderr


def test_workers_whose_tables_differ(new_job: JobMaker, script: ScriptWriter, tmp_path: Path) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy()
        table = sg.Table("users", int(sys.argv[1]))
        strategy.init({"w": np.ones(DIM, np.float32)}, adagrad, tables=[table])
        tell(joined=True)
        wait_for("enough")
    """)
    job = new_job(1, 2)
    job.serve(0)
    chief = job.start("worker", 0, path, 3)
    chief.says("told")
    wrong = job.start("worker", 1, path, 4)
    assert wrong.ends() == 1
    assert re.search(
        "errors.StrategyError: /job:worker/task:1 brings another model than the one on /job:ps/task:0: what is kept of its "
        "tables, or how they are trained, is .* All workers must run the same script with the same arguments",
        wrong.text,
    ), wrong.text
    (tmp_path / "enough").touch()
    chief.ends_well()


def test_a_checkpoint_moves_between_strategies_and_numbers_of_servers(
    nursery: Nursery, script: ScriptWriter, tmp_path: Path
) -> None:
    """Ids that wait to be admitted, rows and slots go on as if nothing had been in between."""
    path = script("""
        rule, directory, last = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
        strategy = sg.OneDeviceStrategy() if rule == "alone" else sg.ParameterServerStrategy(update=eval(rule))
        table = sg.Table("users", DIM, admit_after=1, optimizer=optax.adam(0.1))
        state = strategy.init({"w": np.ones(DIM, np.float32)}, adagrad, tables=[table])
        with sg.Checkpointer(directory) as checkpoints:
            state = checkpoints.restore(like=state) or state
            step = strategy.train_step(loss_of_rows)
            given = list(batches(LARGE * 3, last))[int(state.step):]
            for batch in strategy.distribute(given):
                state, metrics = step(state, batch)
            checkpoints.save(state)
        view = strategy.table(state, "users")
        if strategy.is_chief:
            np.savez(directory / "end.npz", rows=view.lookup(LARGE * 3), count=len(view), w=strategy.fetch(state).params["w"])
        strategy.close()
    """)
    places = moved, straight = tmp_path / "moved", tmp_path / "straight"
    nursery.run(tmp_path, path, "alone", moved, 8)
    nursery.run(tmp_path, path, "sg.Async()", moved, 16, ps=1)
    nursery.run(tmp_path, path, "sg.Async()", moved, 24, ps=3)
    nursery.run(tmp_path, path, "alone", moved, 32)
    nursery.run(tmp_path, path, "alone", straight, 32)
    one, other = (np.load(place / "end.npz") for place in places)
    for name in ("rows", "count", "w"):
        np.testing.assert_array_equal(one[name], other[name])


def test_a_model_may_have_tables_and_nothing_else(
    nursery: Nursery, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy(update=sg.Sync())
        state = strategy.init({}, optax.sgd(0.1), tables=[sg.Table("users", DIM)])
        step = strategy.train_step(lambda params, batch, rows: rows["users"](batch).mean())
        for batch in strategy.distribute(np.arange(number, number + 8) for number in range(5)):
            state, metrics = step(state, batch)
        tell(step=metrics["global_step"], dropped=metrics["dropped"], rows=len(strategy.table(state, "users")))
        strategy.close()
    """)
    (said, *_) = nursery.run(tmp_path, path, ps=2, workers=1)
    assert 'told: {"step": 5, "dropped": 0, "rows": 12}' in said
