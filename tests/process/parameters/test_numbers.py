"""The same parameters, moving averages and optimizer's state as one device; and the same bits again."""

from pathlib import Path

import numpy as np

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as COMMON

PRELUDE = (
    COMMON
    + """
from process.strategies.conformance_job import batches, initial as dense, loss_fn as dense_loss

def train(strategy, steps, optimizer=optax.adam(1e-2)):
    state = strategy.init(dense(), optimizer, ema_decay=0.99)
    step = strategy.train_step(dense_loss)
    losses = []
    for batch in strategy.distribute(batches(steps)):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    fetched = strategy.fetch(state)
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves((fetched.params, fetched.opt_state, fetched.ema))]
    return arrays, int(fetched.step), losses, metrics

def same(found, expected, **tolerance):
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, **tolerance)
"""
)


def test_one_asynchronous_worker_trains_as_one_device_does(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy()
        first, step, losses, metrics = train(strategy, 200)
        again, *_ = train(strategy, 200)
        assert step == metrics["global_step"] == 200
        assert all(one.tobytes() == other.tobytes() for one, other in zip(first, again))
        strategy.close()
        alone, step, expected, _ = train(sg.OneDeviceStrategy(), 200)
        same(first, alone, rtol=1e-6, atol=1e-7)
        same(losses, expected, rtol=1e-6, atol=1e-7)
        assert np.mean(losses[-20:]) < np.mean(losses[:20])
        print("the same")
    """)
    job = new_job(2, 1)
    servers = [job.serve(index) for index in range(2)]
    assert "the same" in job.start("worker", 0, path).ends_well()
    for server in servers:
        server.ends_well()


def test_synchronous_workers_with_two_devices_each_train_as_one_device_does(
    new_job: JobMaker, script: ScriptWriter
) -> None:
    path = script("""
        sg.configure(virtual_devices=2)
        strategy = sg.ParameterServerStrategy(update=sg.Sync(), devices_per_worker=2, partitioner=sg.FixedShards(2))
        assert strategy.num_replicas_in_sync == 4
        noisy = optax.chain(optax.add_noise(0.01, 0.55, jax.random.key(1)), optax.adam(1e-2))
        found, step, losses, metrics = train(strategy, 30, noisy)
        assert step == metrics["global_step"] == 30
        strategy.close()
        alone, step, expected, _ = train(sg.OneDeviceStrategy(), 30, noisy)
        same(found, alone, rtol=1e-5, atol=1e-6)
        same(losses, expected, rtol=1e-5, atol=1e-6)
        print("the same")
    """)
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    workers = [job.start("worker", index, path) for index in range(2)]
    for worker in workers:
        assert "the same" in worker.ends_well()
    for server in servers:
        server.ends_well()


def test_overlapping_pushes_are_all_there_after_the_close(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    path = script("""
        strategy, state, step = start(update=sg.Async(overlap=True))
        if not strategy.is_chief:
            wait_for("closed")
            tell(fetched=summary(strategy.fetch(state)))
            sys.exit()
        steps = []
        for _ in range(30):
            state, metrics = step(state, BATCH)
            steps.append(int(metrics["global_step"]))
        tell(steps=steps)
        strategy.close()
    """)
    job = new_job(2, 2)
    servers = [job.serve(index) for index in range(2)]
    chief, other = [job.start("worker", index, path) for index in range(2)]
    chief.ends_well()
    (tmp_path / "closed").touch()
    other.ends_well()
    for server in servers:
        server.ends_well()
    assert other.results()[0]["fetched"] == {"step": 30, "counts": [30], "values": [30]}
    steps = chief.results()[0]["steps"]
    assert np.all(np.diff(steps) >= 0)
    assert 28 <= steps[-1] <= 30
