"""Several workers: uneven data, workers that die, and what is said when they do not fit together."""

import json
import re
from typing import Any

import pytest

import stratagem as sg
from drills.nursery import Nursery
from drills.processes import launcher
from process.conftest import ScriptWriter

RUN = ("stratagem", "run", "--workers", "2")
PRELUDE = """
import os, signal, sys
import stratagem as sg
import jax.numpy as jnp, numpy as np, optax

def loss_fn(params, batch):
    return jnp.mean((batch - params["w"]) ** 2), {"mean": batch.mean()}

def start(**options):
    strategy = sg.MultiWorkerMirroredStrategy(**options)
    index = strategy.cluster and sg.resolve_cluster().task_index
    return strategy, index, strategy.init({"w": np.float32(0)}, optax.sgd(0.1)), strategy.train_step(loss_fn)
"""


def test_workers_whose_data_end_early_lose_no_row_and_keep_nobody_waiting(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script("""
        strategy, index, state, step = start()
        def own(context):
            assert (context.num_input_pipelines, context.input_pipeline_id) == (2, index)
            return [np.full(3 + index, 10.0 * index + number, np.float32) for number in range(2 + 3 * index)]
        seen = []
        for batch in strategy.distribute_from_function(own):
            state, metrics = step(state, batch)
            seen.append(round(float(metrics["mean"]), 3))
        print("seen", seen, "w", round(float(strategy.fetch(state).params["w"]), 5))
        strategy.close()
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    both = [
        (3 * number + 4 * (10 + number)) / 7 for number in range(2)
    ]  # rows of both, then those of worker 1 alone
    means = [round(mean, 3) for mean in [*both, 12.0, 13.0, 14.0]]
    found = re.findall(r"seen (\[.*?\]) w (\S+)", out)
    assert [json.loads(seen) for seen, _ in found] == [means, means]
    assert len({w for _, w in found}) == 1


def test_a_worker_without_any_data_takes_part(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy, index, state, step = start()
        for batch in strategy.distribute_from_function(lambda context: [] if index == 0 else [np.ones(4, np.float32)] * 3):
            state, metrics = step(state, batch)
        print("w", strategy.fetch(state).params["w"], float(metrics["loss"]))
        strategy.close()
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    lines = re.findall(r"w (\S+ \S+)", out)
    assert len(lines) == 2
    assert lines[0] == lines[1]


def test_different_batches_are_told(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy, index, state, step = start()
        for batch in strategy.distribute([np.full(4, index, np.float32)]):
            state, metrics = step(state, batch)
    """)
    done = nursery.outcome(*RUN, path)
    assert done.returncode == 1
    assert "the first batch of worker 1 is not that of worker 0" in done.stderr


@pytest.mark.parametrize("communication", ["shm", "ring"])
def test_a_worker_that_dies_is_named_and_nobody_hangs(
    nursery: Nursery, script: ScriptWriter, communication: str
) -> None:
    path = script(f"""
        strategy, index, state, step = start(communication={communication!r}, timeout=10)
        try:
            for number, batch in enumerate(strategy.distribute([np.ones(4, np.float32)] * 1000)):
                if number == 20 and index == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                state, metrics = step(state, batch)
                float(metrics["loss"])
        except sg.WorkerLost as error:
            print("caught", error)
            sys.stdout.flush()
            os._exit(7)  # the launcher is told by worker 1 what was first; this only shows that we got here
    """)
    done = nursery.outcome(*RUN, "--restart", "task", "--max-restarts", "1", path)
    assert "caught" in done.stdout, done.stderr
    assert re.search("caught .*/job:worker/task:1", done.stdout)


def test_a_job_that_lost_a_worker_starts_again_as_a_new_generation(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script("""
        strategy, index, state, step = start()
        generation = int(os.environ["STRATAGEM_GENERATION"])
        for number, batch in enumerate(strategy.distribute([np.ones(4, np.float32)] * 50)):
            if number == 20 and index == 1 and generation == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            state, metrics = step(state, batch)
        print("done in generation", generation, strategy.fetch(state).step)
        strategy.close()
    """)
    done = nursery.outcome(*RUN, "--max-restarts", "1", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done in generation 1 50") == 2
    assert "worker:1 failed with signal SIGKILL" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"communication": "nccl"}, "needs GPUs"),
        ({"communication": "mpi"}, "it is one of auto, ring, nccl, shm"),
        ({"cluster": {"worker": ["a:1", "b:1"]}}, "neither flags .* nor TF_CONFIG tell which task"),
        ({"bytes_per_pack": -1}, "bytes_per_pack is -1"),
    ],
)
def test_what_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(sg.StratagemError, match=message):
        sg.MultiWorkerMirroredStrategy(**arguments)


def test_alone_it_is_mirrored(script: ScriptWriter) -> None:
    """In fresh processes: what is imported there, and when, is not what others have imported before."""
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        print("replicas", strategy.num_replicas_in_sync, strategy.is_chief)
    """)
    with launcher("--workers", "1", path) as job:
        code, out, err = job.finish()
    assert code == 0, err
    assert "replicas 1 True" in out


def test_all_begin_with_the_values_of_worker_0(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        index = sg.resolve_cluster().task_index
        own = {"half": jnp.full(3, index, jnp.bfloat16), "w": np.float32(5 + 10 * index)}
        state = strategy.init(own, optax.adam(0.1), ema_decay=0.9)
        print("begins with", *(np.asarray(value).tolist() for value in strategy.fetch(state).params.values()))
        state, _ = strategy.train_step(loss_fn)(state, np.full(4, 2.0 * index, np.float32))
        found = strategy.fetch(state)
        print("ends with", found.params["w"], found.ema["w"], found.opt_state[0].mu["w"])
        strategy.close()
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    assert out.count("begins with [0.0, 0.0, 0.0] 5.0") == 2
    ends = re.findall(r"ends with (.*)", out)
    assert len(ends) == 2
    assert len(set(ends)) == 1


def test_different_models_are_told(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        index = sg.resolve_cluster().task_index
        strategy.init({"w": np.zeros(3 + index, np.float32)}, optax.sgd(0.1))
    """)
    done = nursery.outcome(*RUN, path)
    assert done.returncode == 1
    assert "the model of worker 1 is not that of worker 0" in done.stderr


def test_parameters_of_other_names_are_told_to_all(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        params = {"same": np.float32(0), "w" if strategy.is_chief else "v": np.zeros(3, np.float32)}
        try:
            strategy.init(params, optax.sgd(0.1))
        except sg.StrategyError as error:
            print("told:", error)
        strategy.close()
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    message = (
        "told: the parameters of worker 1 do not have the names of those of worker 0: not all have ['w'] on worker 0, "
        "['v'] on worker 1. All workers must run the same script with the same arguments"
    )
    assert out.count(message) == 2


def test_optimizers_of_other_settings_are_told_to_all(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        try:
            strategy.init({"w": np.zeros(3, np.float32)}, optax.sgd(0.01 if strategy.is_chief else 0.2))
        except sg.StrategyError as error:
            print("told:", error)
        strategy.close()
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    told = re.findall("told: (.*)", out)
    assert len(told) == 2
    assert told[0] == told[1]
    assert "the optimizer of worker 1 does not do what that of worker 0 does" in told[0]
    assert "['w'] changes by -1 on worker 0 and by -20 on worker 1" in told[0]
    assert "All workers must use the same optimizer with the same settings" in told[0]


def test_an_optimizer_that_draws_random_numbers(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        noisy = optax.chain(optax.add_noise(0.1, 0.5, 3), optax.sgd(0.1))
        def trained(strategy):
            state, step = strategy.init({"w": np.zeros(3, np.float32)}, noisy), strategy.train_step(loss_fn)
            for batch in strategy.distribute([np.full((4, 3), number, np.float32) for number in range(5)]):
                state, _ = step(state, batch)
            return strategy.fetch(state).params["w"]
        strategy = sg.MultiWorkerMirroredStrategy()
        found = trained(strategy)
        strategy.close()
        np.testing.assert_allclose(found, trained(sg.OneDeviceStrategy()), rtol=1e-5)
        print("the same")
    """)
    out = "".join(nursery.run(path.parent, path, workers=2))
    assert out.count("the same") == 2
