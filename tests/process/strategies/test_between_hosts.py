"""`MultiWorkerMirroredStrategy` between hosts: XLA's ring, and what becomes of it when a worker or a link dies."""

import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from drills.nursery import Nursery, Task
from hosts import Host, simulated_hosts
from process.conftest import ScriptWriter
from stratagem.engines.jax_distributed import own_address

PRELUDE = """
import logging, os, signal, sys
import stratagem as sg
import jax.numpy as jnp, numpy as np, optax

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
index = sg.resolve_cluster().task_index
random = np.random.default_rng(0)
batches = [random.standard_normal((rows, 5)).astype(np.float32) for rows in [8, 7, 1, 4]]

def loss_fn(params, batch):
    return jnp.mean((batch @ params["w"] - params["b"]) ** 2)

def start(strategy):
    params = {"w": np.full((5, 3), 0.1, np.float32), "b": np.ones(3, np.float32)}
    return strategy.init(params, optax.adam(0.1)), strategy.train_step(loss_fn)
"""
Workers = Callable[[Path], list[Task]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with simulated_hosts(3) as hosts:
        yield hosts


@pytest.fixture
def workers(
    nursery: Nursery, hosts: list[Host], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Workers]:
    """Starts a worker on each of two hosts or more, without a launcher, which would end the survivors."""
    count = getattr(request, "param", 2)
    with nursery.job(tmp_path, 0, count, hosts[:count]) as job:
        yield lambda script: [job.start("worker", index, script) for index in range(count)]


@pytest.mark.parametrize("workers", [2, 3], indirect=True)
def test_the_same_parameters_as_on_one_device(workers: Workers, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy()
        state, step = start(strategy)
        for batch in strategy.distribute(batches * 5):
            state, metrics = step(state, batch)
        alone = sg.OneDeviceStrategy()
        expected, step = start(alone)
        for batch in batches * 5:
            expected, metrics = step(expected, batch)
        found, expected = strategy.fetch(state).params, alone.fetch(expected).params
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
        print("the same")  # and the end, without a close
    """)
    for worker in workers(path):
        out = worker.ends_well()
        assert "communication ring, since the workers are on several hosts without GPUs" in out
        assert "the same" in out


def test_the_worker_with_the_coordinator_is_ended(workers: Workers, script: ScriptWriter) -> None:
    """The hard case: JAX by itself keeps SIGTERM from ending the one, and aborts the other."""
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy(communication="ring", timeout=10)
        state, step = start(strategy)
        for number, batch in enumerate(strategy.distribute(batches * 100)):
            if number == 5 and index == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            state, metrics = step(state, batch)
    """)
    victim, survivor = workers(path)
    code, err = survivor.ends(), survivor.text
    assert victim.ends() == -signal.SIGTERM
    assert code == 1, err
    assert "stratagem.errors.WorkerLost: /job:worker/task:0 is lost" in err
    assert re.search(rf"^  in {path}, line \d+: state, metrics = step\(state, batch\)$", err, re.MULTILINE)
    assert "Traceback" not in err  # of the survivor, which has done nothing wrong


def test_a_cut_link(hosts: list[Host], workers: Workers, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.MultiWorkerMirroredStrategy(timeout=3)
        state, step = start(strategy)
        for number, batch in enumerate(strategy.distribute(batches * 100_000)):
            state, metrics = step(state, batch)
            if number == 5 and index == 0:
                print("under way", flush=True)
    """)
    started = workers(path)
    started[0].says("under way")
    hosts[1].cut()
    try:
        for other, worker in zip((1, 0), started, strict=True):
            assert worker.ends(60) == 1, worker.text
            lost = f"stratagem.errors.WorkerLost: /job:worker/task:{other} is lost: it has given no sign"
            assert lost in worker.text
    finally:
        hosts[1].heal()


def test_shared_memory_is_for_one_host(workers: Workers, script: ScriptWriter) -> None:
    path = script("""
        sg.MultiWorkerMirroredStrategy(communication="shm")
    """)
    for worker in workers(path):
        assert worker.ends() == 1
        words = "StrategyError: communication='shm' needs all workers on one host.*Use 'ring'"
        assert re.search(words, worker.text)


def test_the_address_that_others_reach(hosts: list[Host]) -> None:
    """Whatever the host's own name means on the host itself, or if it means nothing."""
    here, there, _ = hosts
    for own in ("localhost", here.address, "no-such-host.invalid", there.address):
        assert here.run(partial(own_address, own, [own, there.address])) == here.address
    assert here.run(partial(own_address, "localhost", ["127.0.0.1"])) == "127.0.0.1"
