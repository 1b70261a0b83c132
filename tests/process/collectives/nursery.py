"""Groups of real worker processes, forked by one that has imported everything already; also run as that one.

Each worker writes lines of JSON to the standard output that all share: what it has to tell, then how it ended.
"""

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from drills.processes import Marked
from stratagem.tools.launch.tasks import ReservedPort

HERE = Path(__file__).resolve()
TESTS, ROOT = HERE.parents[2], HERE.parents[3]
DEADLINE = 30.0


class Crew:
    """The workers of one group, each a process."""

    def __init__(self, nursery: "Nursery", number: int, workers: int, arguments: dict[str, Any]) -> None:
        self._nursery = nursery
        self._number = number
        self._arguments = arguments
        self.pids: dict[int, int] = {}
        self._lines: dict[int, queue.SimpleQueue[dict[str, Any]]] = {
            worker: queue.SimpleQueue() for worker in range(workers)
        }

    def start(self, *workers: int, **arguments: Any) -> None:
        """Start workers, with arguments of their own."""
        for worker in workers:
            command = {"crew": self._number, "worker": worker, "count": len(self._lines)}
            self._nursery.say({**command, "arguments": {**self._arguments, **arguments}})
            self.pids[worker] = int(self.line(worker)["pid"])

    def take(self, worker: int, line: dict[str, Any]) -> None:
        self._lines[worker].put(line)

    def line(self, worker: int, seconds: float = DEADLINE) -> dict[str, Any]:
        """The next thing that a worker tells."""
        try:
            return self._lines[worker].get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"nothing from worker {worker} within {seconds:g} s") from None

    def end(self, worker: int, seconds: float = DEADLINE) -> dict[str, Any]:
        """How a worker ended: its last line, which has `ended` in it."""
        while True:
            line = self.line(worker, seconds)
            if "ended" in line:
                return line

    def ends(self) -> list[dict[str, Any]]:
        """How all of them ended, every one well."""
        ends = [self.end(worker) for worker in self._lines]
        for end in ends:
            assert end["ended"] == "well", end
        return ends

    def signal(self, worker: int, number: int) -> float:
        """Send a signal to a worker; when."""
        os.kill(self.pids[worker], number)
        return time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.pids:
            self._nursery.say({"crew": self._number, "kill": worker})
        for worker in self.pids:
            while "gone" not in self.line(worker):
                pass


class Nursery:
    """The process that forks workers."""

    def __init__(self, **environ: str) -> None:
        paths = os.pathsep.join([str(TESTS), str(ROOT)])
        read, write = os.pipe()
        self._marked = Marked(
            [sys.executable, str(HERE)],
            stdin=read,
            stderr=2,
            environ={"PYTHONPATH": paths, **environ},
        )
        os.close(read)
        self._commands = os.fdopen(write, "w", buffering=1)
        self._crews: list[Crew] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def crew(self, workers: int, program: str, *, start: bool = True, **arguments: Any) -> Crew:
        """A group of so many workers that run one of the programs."""
        crew = Crew(self, len(self._crews), workers, {"program": program, **arguments})
        self._crews.append(crew)
        if start:
            crew.start(*range(workers))
        return crew

    def say(self, command: dict[str, Any]) -> None:
        self._commands.write(json.dumps(command) + "\n")

    def _read(self) -> None:
        for line in self._marked.process.stdout or ():
            told = json.loads(line)
            self._crews[told.pop("crew")].take(told.pop("worker"), told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands.close()
        try:
            assert self._marked.process.wait(10) == 0
            self._reader.join(10)
            assert not self._marked.processes(), "something is left running"
        finally:
            self._marked.__exit__()


# ------------------------------------------------------- the process that forks


def tell(crew: int, worker: int, **words: Any) -> None:
    os.write(1, json.dumps({"crew": crew, "worker": worker, **words}).encode() + b"\n")


def run_worker(command: dict[str, Any], addresses: list[str], sock: socket.socket) -> None:
    """The life of one worker."""
    from process.collectives.programs import PROGRAMS

    crew, worker = command["crew"], command["worker"]

    def say(**words: Any) -> None:
        tell(crew, worker, **words)

    say(pid=os.getpid())
    arguments = dict(command["arguments"])
    try:
        result = PROGRAMS[arguments.pop("program")](worker, addresses, sock, say, **arguments)
        say(ended="well", result=result, at=time.monotonic())
    except BaseException as error:  # noqa: BLE001  it is what the test wants to know
        say(
            ended=type(error).__name__,
            words=str(error),
            task=getattr(error, "task", None),
            at=time.monotonic(),
            trace=traceback.format_exc()[-3000:],
        )


def main() -> None:
    """Fork workers as told on standard input, until it ends."""
    import process.collectives.programs  # noqa: F401  so that no worker has to

    ports: dict[int, list[ReservedPort]] = {}
    pids: dict[tuple[int, int], int] = {}

    def end(crew: int, worker: int) -> None:
        os.kill(pids[crew, worker], signal.SIGKILL)
        os.waitpid(pids.pop((crew, worker)), 0)
        tell(crew, worker, gone=True)

    for line in sys.stdin:
        command = json.loads(line)
        crew = command["crew"]
        if "kill" in command:
            end(crew, command["kill"])
            for port in ports.pop(crew, []):
                port.close()
            continue
        if crew not in ports:
            ports[crew] = [ReservedPort() for _ in range(command["count"])]
        worker = command["worker"]
        sock = ports[crew][worker].socket_for_task()
        pid = os.fork()
        if pid == 0:
            try:
                run_worker(command, [port.address for port in ports[crew]], sock)
            finally:
                os._exit(0)
        sock.close()
        pids[crew, worker] = pid
    for crew, worker in list(pids):
        end(crew, worker)


if __name__ == "__main__":
    main()
