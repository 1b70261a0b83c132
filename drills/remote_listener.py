"""A listener in a process of its own, and what can be observed of it from outside; also run as that process.

python drills/remote_listener.py '{"where": "127.0.0.1:0", "secret": "s"}'
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

from stratagem import errors
from stratagem.runtime.wire import TLS, Credentials, Limits, Listener, Peer, Reply, Request

SECRET = "the secret of the tests"


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no peak in /proc")


class RemoteListener:
    """The listener's process, from its start to its end.

    Args:
        settings: Settings of the listener; see `main`.
        before: Words before the command, such as `ip netns exec`.
        environ: Further environment variables.
    """

    def __init__(
        self, *, before: tuple[str, ...] = (), environ: dict[str, str] | None = None, **settings: Any
    ) -> None:
        self.settings = {"where": "127.0.0.1:0", "secret": SECRET, **settings}
        self.process = subprocess.Popen(
            [*before, sys.executable, __file__, json.dumps(self.settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environ or {})},
        )
        self.address = (self.process.stdout.readline() if self.process.stdout else "").strip()
        self._log: list[str] = []
        self._grew = threading.Condition()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self.address:
            self.close()
            raise AssertionError(f"no far side: {self.log}")

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        """All that it has logged so far."""
        return "".join(self._log)

    def expect_log(self, text: str, seconds: float = 10.0) -> None:
        """Wait until its log contains a text."""
        with self._grew:
            assert self._grew.wait_for(lambda: text in self.log, seconds), f"no {text!r} in: {self.log}"

    def _read_log(self) -> None:
        for line in self.process.stderr or ():
            with self._grew:
                self._log.append(line)
                self._grew.notify_all()

    def peer(self, secret: str | None = SECRET, **options: Any) -> Peer:
        return Peer(self.address, "/job:ps/task:0", Credentials(secret), **options)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------- the process itself


def echo(request: Request) -> Reply:
    return Reply(request.fields, request.tensors)


def total(request: Request) -> Reply:
    return Reply(
        {"owned": request.owned}, [np.asarray(sum(float(tensor.sum()) for tensor in request.tensors))]
    )


def fail(request: Request) -> Reply:
    kind = vars(errors).get(request.fields["kind"]) or getattr(__builtins__, request.fields["kind"])
    raise kind(request.fields["words"])


def half(request: Request) -> Reply:
    raise FileNotFoundError(f"no file \udcff{request.fields}x")


def hang(request: Request) -> Reply:
    """Answer only after the caller has gone."""
    os.write(1, b"hanging\n")  # whole lines, whichever threads write them
    while not request.is_abandoned():
        time.sleep(0.01)
    os.write(1, b"abandoned\n")
    return Reply()


def who(request: Request) -> Reply:
    return Reply({"name": request.peer.name, "address": request.peer.address, "pid": os.getpid()})


def main(settings: dict[str, Any]) -> None:
    """Listen until standard input ends.

    Settings: `where`, `secret`, `tls` (three files), `limits` (a dictionary), `insecure`.
    """
    tls = TLS(*settings["tls"]) if settings.get("tls") else None
    listener = Listener(
        settings["where"],
        {"echo": echo, "total": total, "fail": fail, "hang": hang, "half": half, "who": who},
        info={"task": "/job:ps/task:0", "platform": "cpu"},
        credentials=Credentials(settings["secret"], tls),
        limits=Limits(**settings.get("limits", {})),
        insecure=settings.get("insecure", False),
    )

    def status(_: Request) -> Reply:
        found = listener.status()
        return Reply(
            {"connections": found.connections, "strangers": found.strangers, "refused": found.refused}
        )

    listener.register("status", status)
    with listener:
        print(listener.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    main(json.loads(sys.argv[1]))
