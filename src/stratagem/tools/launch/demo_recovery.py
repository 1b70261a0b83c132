"""The demo's second script: trains on parameter servers, and kills a server and a worker on the way."""

import os
import signal
import time

import jax
import optax

import stratagem as sg
from stratagem import environment
from stratagem.tools.launch.demo_job import batches, init, loss_fn, say_accuracy

STEPS, BATCH, HIDDEN = 2000, 120, 128
REPORT_SECONDS = 0.5
WORKER_KILLED_AT, SERVER_KILLED_AT = 500, 1000
SERVER = "/job:ps/task:1"


def main() -> None:
    """Train, tell how it goes, and kill."""
    strategy = sg.ParameterServerStrategy(snapshot_secs=1)
    digits = sg.data.load_digits()
    state = strategy.init(init(jax.random.key(0), HIDDEN), optax.adam(2e-4))
    train_step = strategy.train_step(loss_fn)
    is_first_start = environment.generation() == 0
    is_server_to_be_killed = strategy.is_chief
    reported = 0.0
    for batch in strategy.distribute(batches(digits, BATCH)):
        state, metrics = train_step(state, batch)
        step, now = metrics["global_step"], time.monotonic()
        if strategy.is_chief and now - reported > REPORT_SECONDS:
            reported = now
            lost = "" if is_server_to_be_killed else f", {metrics['lost_updates']} updates lost"
            print(f"step {step}: loss {float(metrics['loss']):.4f}{lost}")  # noqa: T201
        if not strategy.is_chief and is_first_start and step > WORKER_KILLED_AT:
            _kill(os.getpid(), "this worker")
        if is_server_to_be_killed and step > SERVER_KILLED_AT:
            is_server_to_be_killed = False
            _kill(strategy.status()[SERVER]["process"], "ps:1, which has half of the parameters")
        if step >= STEPS:
            break
    if strategy.is_chief:
        say_accuracy(strategy.fetch(state).params, digits)
    strategy.close()


def _kill(process: int, who: str) -> None:
    print(f"kill -9 {process}  # {who}")  # noqa: T201
    os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
