"""One client, one set of variables on the servers, a copy of the compute on every worker."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from drills.cluster import ServedCluster
from drills.nursery import Nursery
from drills.processes import until
from process.conftest import ScriptWriter
from proofs import FUNCTIONS, Proves

PRELUDE = f"""
import sys; sys.path.append({str(Path(__file__).parents[3])!r}); sys.path.append({str(Path(__file__).parents[4])!r})
import jax.numpy as jnp, numpy as np, stratagem as sg
from process.classic.coordinator.test_in_graph import CLIPPED, batches, initial, loss_fn
"""

ROWS = [8, 7, 1]
"""Rows of the global batches, in turn: some divide over two workers, some do not, one leaves one without a row."""
CLIPPED = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.05, momentum=0.9))
Params = dict[str, Any]


def initial() -> Params:
    random = np.random.default_rng(1)
    return {
        "w1": random.standard_normal((8, 16)).astype(np.float32) * 0.3,
        "b1": np.zeros(16, np.float32),
        "w2": random.standard_normal((16, 3)).astype(np.float32) * 0.3,
    }


def batches(steps: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(2)
    made = []
    for step in range(steps):
        images = random.standard_normal((ROWS[step % len(ROWS)], 8)).astype(np.float32)
        made.append((images, np.argmax(images[:, :3] + images[:, 3:6] ** 2, axis=1).astype(np.int32)))
    return made


def loss_fn(params: Params, batch: tuple[Any, Any]) -> tuple[Any, dict[str, Any]]:
    images, labels = batch
    logits = jnp.tanh(images @ params["w1"] + params["b1"]) @ params["w2"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean(), {"accuracy": (logits.argmax(-1) == labels).mean()}


@contextmanager
def in_graph(
    monkeypatch: pytest.MonkeyPatch, nursery: Nursery, update: Any, **options: Any
) -> Iterator[tuple[ServedCluster, sg.ParameterServerStrategy]]:
    monkeypatch.setenv("STRATAGEM_SECRET", ServedCluster.secret)
    with ServedCluster({"ps": 2, "worker": 2}, nursery=nursery) as cluster:
        strategy = sg.ParameterServerStrategy(
            cluster=cluster.cluster, update=update, replication="in-graph", **options
        )
        yield cluster, strategy
        strategy.close()
        for job in ("ps", "worker"):
            for index in range(2):
                assert cluster.ends(job, index) == 0, "servers end when the client has"


def trained(strategy: sg.Strategy, made: Iterable[Any]) -> tuple[sg.TrainState, list[float]]:
    state = strategy.init(initial(), CLIPPED, ema_decay=0.9)
    step = strategy.train_step(loss_fn)
    losses = []
    for batch in strategy.distribute(made):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return state, losses


def close(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), one, other)


def test_in_step_as_on_one_device_whoever_is_lost(
    monkeypatch: pytest.MonkeyPatch, nursery: Nursery, tmp_path: Path, proves: Proves
) -> None:
    proves(FUNCTIONS, "in-graph")
    made = batches(30)
    one_device = sg.OneDeviceStrategy("/cpu:0")
    alone, losses = trained(one_device, made)
    with in_graph(monkeypatch, nursery, sg.Sync(), partitioner=sg.FixedShards(2)) as (cluster, strategy):
        assert strategy.num_replicas_in_sync == 2
        ran_before = []

        def runs() -> int:
            told = strategy.session.status()["/job:worker/task:1"]
            return int(told["calls"].get("program.run", 0)) if "calls" in told else -1

        def lossy() -> Iterator[Any]:
            for number, batch in enumerate(made):
                if number == 10:
                    ran_before.append(runs())
                    cluster.kill("worker", 1)
                if number == 20:
                    cluster.start("worker", 1)
                    until("it to answer", lambda: runs() == 0)
                yield batch

        state, others = trained(strategy, lossy())
        assert ran_before[0] > 0
        close(losses, others)
        together = strategy.fetch(state)
        close((alone.params, alone.opt_state, alone.ema), (together.params, together.opt_state, together.ema))
        assert int(together.step) == int(state.step) == len(made)
        np.testing.assert_array_equal(np.asarray(state.params["w1"]), together.params["w1"])
        with sg.Checkpointer(tmp_path) as checkpoints:
            checkpoints.save(state)
        step = strategy.train_step(loss_fn)
        state, _ = step(state, made[0])
        assert np.abs(np.asarray(state.params["w1"]) - together.params["w1"]).max() > 1e-4
        with sg.Checkpointer(tmp_path) as checkpoints:
            fresh = one_device.init(initial(), CLIPPED, ema_decay=0.9)
            elsewhere, back = checkpoints.restore(like=fresh), checkpoints.restore(like=state)
            assert elsewhere is not None
            assert back is not None
            close(elsewhere.params, together.params)
            close(strategy.fetch(back).params, together.params)
            assert int(back.step) == len(made)
        with pytest.raises(sg.StrategyError, match=r"as it is used here: .* replication='between-graph'"):
            strategy.init(initial(), CLIPPED, tables=[sg.Table("users", 4)])
        with pytest.raises(sg.StrategyError, match="ClusterCoordinator"):
            strategy.reduce("mean", strategy.run(lambda: 1.0))


def test_a_server_that_dies_between_two_steps_ends_it_at_once(
    monkeypatch: pytest.MonkeyPatch, nursery: Nursery
) -> None:
    monkeypatch.setenv("STRATAGEM_SECRET", ServedCluster.secret)
    with ServedCluster({"ps": 1, "worker": 2}, nursery=nursery) as cluster:
        strategy = sg.ParameterServerStrategy(
            cluster=cluster.cluster, update=sg.Sync(), replication="in-graph"
        )
        state = strategy.init(initial(), CLIPPED)
        step = strategy.train_step(loss_fn)
        (batch,) = batches(1)
        state, _ = step(state, batch)
        cluster.kill("ps", 0)
        with pytest.raises(
            sg.TaskLost, match=r"/job:ps/task:0 is lost, and the variables .* sg\.Checkpointer"
        ):
            step(state, batch)
        strategy.close()


def test_each_at_its_own_pace_by_one_command(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.ParameterServerStrategy(update=sg.Async(), replication="in-graph")
        assert strategy.num_replicas_in_sync == 1 and strategy.is_chief
        made = [batch for batch in batches(12) if len(batch[0]) == 8] * 40
        whole = tuple(np.concatenate(column) for column in zip(*made))
        state = strategy.init(initial(), CLIPPED)
        step = strategy.train_step(loss_fn)
        told = []
        memory = tuple(column.copy() for column in made[0])
        for batch in strategy.distribute(made):
            for target, source in zip(memory, batch):
                target[:] = source  # as who makes batches may do
            state, metrics = step(state, memory)
            told.append(metrics)
        losses = [float(metrics["loss"]) for metrics in told]
        assert sorted(int(metrics["global_step"]) for metrics in told) == list(range(1, len(made) + 1))
        assert -1 < metrics["accuracy"] <= 1 and f"{metrics['loss']:.3f}" == f"{losses[-1]:.3f}"
        fetched = strategy.fetch(state)
        assert int(fetched.step) == len(made)
        before, after = (float(loss_fn(params, whole)[0]) for params in (initial(), fetched.params))
        assert np.abs(fetched.params["w1"] - np.asarray(state.params["w1"])).max() == 0
        for given in (strategy, None):
            with sg.ClusterCoordinator(given) as coordinator:
                assert coordinator.schedule(jnp.cos, (0.0,)).fetch() == 1.0
        print("loss", before, after)
    """)
    out = nursery.said("stratagem", "run", "--ps", "1", "--workers", "2", "--single-client", path)
    found = re.search(r"loss ([\d.]+) ([\d.]+)", out)
    assert found, out
    assert float(found[2]) < float(found[1]) / 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update": sg.BoundedStaleness(2)}, "in-graph.*one client drives all workers"),
        ({"update": sg.Sync(1, 2)}, "in-graph.*one client drives all workers"),
        ({"devices_per_worker": 2}, "a worker computes on one device"),
        ({"snapshot_dir": "/snapshots"}, "save with sg.Checkpointer"),
        ({"cluster": {"worker": ["127.0.0.1:1"]}}, "no ps task"),
        ({"cluster": {"ps": ["127.0.0.1:1"]}}, "no worker"),
        ({"replication": "within"}, "'between-graph' or 'in-graph'"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    cluster = {"ps": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    with pytest.raises(sg.StrategyError, match=message):
        sg.ParameterServerStrategy(**{"cluster": cluster, "replication": "in-graph", **options})
