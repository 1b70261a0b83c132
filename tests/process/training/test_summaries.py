"""Summaries and progress of a real job: one script on every worker, one voice, and each worker's own figures."""

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drills.nursery import Nursery
from process.conftest import ScriptWriter

RUN = ("stratagem", "run", "--workers", "2")
PRELUDE = """
import itertools, os
from pathlib import Path
import numpy as np, optax
import stratagem as sg

def loss_fn(params, batch):
    return ((batch @ params["w"]) ** 2).mean()

rng = np.random.default_rng(0)
batches = (rng.standard_normal((12, 4)).astype(np.float32) for _ in itertools.count())
"""
STEPS = 60


def read(directory: Path) -> Any:
    found = EventAccumulator(str(directory))
    found.Reload()
    return found


def test_parameter_servers(nursery: Nursery, script: ScriptWriter) -> None:
    path = script(f"""
    os.chdir(Path(__file__).parent)
    strategy = sg.ParameterServerStrategy(update=sg.BoundedStaleness(4))
    writer = sg.SummaryWriter("logs", strategy)
    own = sg.SummaryWriter("each", each_worker=True)
    writer.cluster(strategy.cluster)
    session = sg.Session(f"sg://{{strategy.cluster.task_address('ps', 0)}}") if strategy.is_chief else None
    state = strategy.init({{"w": np.ones(4, np.float32)}}, optax.sgd(0.01))
    step = strategy.train_step(loss_fn)
    steps = sg.progress(strategy.distribute(itertools.islice(batches, {STEPS})), every=10)
    for batch in steps:
        state, metrics = step(state, batch)
        status = session.status() if session and steps.pace.steps % 10 == 9 else None
        steps.tell(metrics, status=status)
        writer.training(metrics, examples_per_second=steps.examples_per_second)
        own.training(metrics, examples_per_second=steps.examples_per_second)
        writer.histograms("variables", state.params, metrics["global_step"])
        if status is not None:
            writer.status(status, metrics["global_step"])
    if session:
        session.close()
    writer.close()
    own.close()
    strategy.close()
    """)
    out = nursery.said(*RUN, "--ps", "1", path)
    assert "[worker:0] step 10: loss " in out and "[worker:1] step" not in out
    assert "[worker:0]   /job:worker/task:1: trains" in out

    told = read(path.parent / "logs")
    assert {"training/loss", "training/staleness", "training/dropped", "speed/examples_per_second"} <= set(
        told.Tags()["scalars"]
    )
    assert {"servers/model-0/staleness", "servers/model-0/updates_per_second"} <= set(told.Tags()["scalars"])
    assert {"variables/w", "training/staleness_histogram", "servers/model-0/staleness_histogram"} <= set(
        told.Tags()["histograms"]
    )
    assert "/job:ps/task:0" in told.Tensors("cluster")[0].tensor_proto.string_val[0].decode()
    reached = 0
    for worker in ("worker-0", "worker-1"):
        figures = read(path.parent / "each" / worker)
        assert figures.Scalars("speed/examples_per_second")
        steps = [event.step for event in figures.Scalars("training/loss")]
        assert len(steps) == STEPS // 2 and steps == sorted(set(steps))
        reached = max(reached, steps[-1])
    assert reached == STEPS


def test_workers_in_step_are_heard_once(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
    os.chdir(Path(__file__).parent)
    strategy = sg.MultiWorkerMirroredStrategy()
    state = strategy.init({"w": np.ones(4, np.float32)}, optax.sgd(0.01))
    step = strategy.train_step(loss_fn)
    with sg.SummaryWriter("logs") as writer:
        steps = sg.progress(strategy.distribute(itertools.islice(batches, 20)), total=20, every=10, examples=12)
        for batch in steps:
            state, metrics = step(state, batch)
            steps.tell(metrics)
            writer.training(metrics, state.step)
    strategy.close()
    """)
    out = nursery.said(*RUN, path)
    assert [line.split(":")[1] for line in out.splitlines() if " step " in line] == [
        "0] step 10/20",
        "0] step 20/20",
    ]
    assert len(list((path.parent / "logs").iterdir())) == 1
    assert [event.step for event in read(path.parent / "logs").Scalars("training/loss")] == list(range(1, 21))
