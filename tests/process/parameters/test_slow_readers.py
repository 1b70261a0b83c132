"""A worker whose link is slow: the others go on while its parameters are sent."""

import contextlib
import socket
import threading

from drills.relay import Relay
from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as PRELUDE
from stratagem.tools.launch.job_shape import tf_config
from stratagem.tools.launch.tasks import TaskName

ROWS = 800_000
"""So that the parameters, 32 MB, are more than all buffers of a connection together."""
PIECE, PAUSE = 16_384, 0.1
"""Bytes and seconds of a slow line: all parameters take three minutes."""
FURTHER = 5
SECONDS = 60.0
"""Within which the others have gone on."""


class SlowLine(Relay):
    """A line that can become slow for what the task says, while the task hears at once what is said to it."""

    def __init__(self, address: str) -> None:
        self._is_quick = threading.Event()
        self._is_quick.set()
        super().__init__(address)

    def slow_down(self) -> None:
        """Pass things on piece by piece from now on."""
        self._is_quick.clear()

    def speed_up(self) -> None:
        """Pass on all at once again."""
        self._is_quick.set()

    def join(self, near: socket.socket, far: socket.socket) -> None:
        """See `Relay`."""
        self.start(self._pass_on, near, far, False)
        self.start(self._pass_on, far, near, True)

    def _pass_on(self, source: socket.socket, other: socket.socket, may_be_slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                if may_be_slow:
                    self._is_quick.wait(PAUSE)
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def test_others_go_on_while_one_is_still_sent_its_parameters(new_job: JobMaker, script: ScriptWriter) -> None:
    path = script(f"""
        from stratagem.parameters import protocol
        protocol.CALL_SECONDS = 600.0  # what is slow is not given up
        strategy = sg.ParameterServerStrategy()
        state, step = strategy.init(initial(rows={ROWS}), optimizer()), strategy.train_step(loss_fn)
        index = strategy.workers.index
        for number in range(3):
            state, metrics = step(state, BATCH)
        print("under way", flush=True)
        wait_for(f"go {{index}}")
        for number in range({FURTHER}):
            state, metrics = step(state, BATCH)
        print("further", flush=True)
        wait_for("end")
        tell(fetched=summary(strategy.fetch(state)))
    """)
    job = new_job(1, 2)
    server = job.serve(0)
    address = job.addresses[TaskName("ps", 0)]
    with SlowLine(address) as line:
        seen = {**job.addresses, TaskName("ps", 0): line.address}
        slow = {"TF_CONFIG": tf_config(TaskName("worker", 1), seen), "STRATAGEM_SHM": "off"}
        workers = [job.start("worker", 0, path), job.start("worker", 1, path, **slow)]
        for worker in workers:
            worker.says("under way")
        line.slow_down()
        (path.parent / "go 1").touch()
        (path.parent / "go 0").touch()
        workers[0].says("further", SECONDS)
        assert "further" not in workers[1].text
        line.speed_up()
        workers[1].says("further")
        (path.parent / "end").touch()
        for worker in workers:
            worker.ends_well()
    server.ends_well()
    updates = 2 * (3 + FURTHER)
    for worker in workers:
        fetched = worker.results()[0]["fetched"]
        assert (fetched["step"], fetched["counts"]) == (updates, [updates])
