"""The process that reads foreign programs, so that no program can bring down its server.

MLIR's parser can crash, hang or allocate without end on malformed bytes. Here that costs a small process without secrets
instead of a server. The process answers one request after another, from its standard input to its output. It does not
import JAX, and ends when its input does, when a request takes too long, or when there was no request for a while.
"""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Self, cast

from stratagem.environment import current
from stratagem.errors import ProgramRefused, StratagemError
from stratagem.runtime.programs.summary import ProgramLimits, TensorSpec
from stratagem.runtime.programs.walk import Findings, walk

_LENGTHS = struct.Struct("<QQ")


def write_message(stream: IO[bytes], header: dict[str, Any], payload: bytes) -> None:
    """Write one message: two lengths, a header as JSON, a payload."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Read one message; return `None` at the end of the stream, even in the middle of a message."""
    lengths = stream.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    text_length, payload_length = _LENGTHS.unpack(lengths)
    text = stream.read(text_length)
    payload = stream.read(payload_length)
    if len(text) < text_length or len(payload) < payload_length:
        return None
    return json.loads(text), payload


def answer(header: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
    """Walk one module, and return a message with the findings, or the reason for a refusal."""
    limits = header["limits"]
    try:
        findings = walk(module, header["platform"], None if limits is None else ProgramLimits(**limits))
    except ProgramRefused as refusal:
        return {"refused": str(refusal)}, b""
    fields = asdict(findings)
    return {"findings": fields}, fields.pop("module")


def findings_from(fields: dict[str, Any], module: bytes) -> Findings:
    """Rebuild the findings from a message of `answer`."""

    def specs(name: str) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(tuple(spec["shape"]), spec["dtype"]) for spec in fields[name])

    return Findings(
        specs("inputs"),
        specs("outputs"),
        fields["operations"],
        fields["constant_bytes"],
        fields["unfused_bytes"],
        tuple(fields["custom_calls"]),
        module,
    )


def main(seconds: float, memory_bytes: int, idle_seconds: float) -> None:
    """Answer requests until the input ends; the child process runs this.

    Args:
        seconds: Longest time for one request; then SIGALRM ends the process.
        memory_bytes: Address space beyond what the process has when it starts.
        idle_seconds: Longest time between requests; then SIGALRM ends the process too.
    """
    # Ctrl-C goes to the whole group; the server decides what ends, and closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory_bytes, mapped + memory_bytes))
    # From here on, errors come from MLIR about foreign bytes; up to here, they would show a broken installation.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    write_message(sys.stdout.buffer, {"ready": True}, b"")
    while True:
        signal.setitimer(signal.ITIMER_REAL, idle_seconds)
        request = read_message(sys.stdin.buffer)
        if request is None:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        header, payload = answer(*request)
        write_message(sys.stdout.buffer, header, payload)


_START = "from stratagem.runtime.programs.inspector import main; main({seconds!r}, {memory_bytes!r}, {idle_seconds!r})"


class _Child:
    """The process and its two pipes."""

    def __init__(self, seconds: float, memory_bytes: int, idle_seconds: float) -> None:
        # Without the secret: a process that reads foreign bytes need not know it.
        environment = {name: value for name, value in current().items() if not name.startswith("STRATAGEM_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self._parent = os.getpid()
        start = _START.format(
            seconds=seconds,
            memory_bytes=memory_bytes,
            idle_seconds=idle_seconds,
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._input = cast(IO[bytes], self._process.stdin)
        self._output = cast(IO[bytes], self._process.stdout)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def send(self, header: dict[str, Any], payload: bytes) -> None:
        write_message(self._input, header, payload)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        return read_message(self._output)

    def wait(self) -> int:
        """Return its exit status, once its output has ended: a negative number is the signal."""
        return self._process.wait()

    def end(self) -> None:
        """End it now, whatever it is doing."""
        if os.getpid() != self._parent:
            return  # a fork of the owner is ending: the process belongs to its parent
        self._process.kill()
        for pipe in (self._input, self._output):
            with suppress(BrokenPipeError):  # unwritten bytes are of no use to anyone
                pipe.close()
        self._process.wait()


class Inspector:
    """Walks modules in a process that starts when first needed, and again after a crash.

    Calls from several threads take turns. The process ends with `close`, when this process ends, and when it has had nothing
    to do for a while.

    Example:
        >>> with Inspector() as inspector:
        ...     findings = inspector.walk(module, "cpu", ProgramLimits())

    Args:
        seconds: Longest time that reading one program may take.
        memory_bytes: Most memory that reading one program may take.
        idle_seconds: How long the process stays when there is nothing to do.
    """

    def __init__(
        self, seconds: float = 10.0, memory_bytes: int = 2 << 30, idle_seconds: float = 60.0
    ) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._ending: weakref.finalize[[], Inspector] | None = None
        self._starts = 0

    @property
    def starts(self) -> int:
        """The number of times that the process was started."""
        return self._starts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the process now, so that the first program need not wait for it."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process, if there is one; another request would start it again."""
        with self._lock:
            self._end()

    def walk(self, module: bytes, platform: str, limits: ProgramLimits | None) -> Findings:
        """Walk a module in the other process, as `walk.walk` does.

        Raises:
            ProgramRefused: The module is not allowed, or the process crashed, ran out of time or ran out of memory.
        """
        header = {"platform": platform, "limits": None if limits is None else asdict(limits)}
        with self._lock:
            try:
                reply, payload = self._ask(header, module)
            except BaseException:
                self._end()  # the pipe may hold half a message, after which no other could be read
                raise
        if "refused" in reply:
            raise ProgramRefused(reply["refused"])
        return findings_from(reply["findings"], payload)

    def _ask(self, header: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
        while True:
            child = self._running()
            began = time.monotonic()
            reply = None
            with suppress(BrokenPipeError):
                child.send(header, module)
                reply = child.receive()
            if reply is not None:
                return reply
            took = time.monotonic() - began
            status = child.wait()
            self._end()
            if status == -signal.SIGALRM and took < self._seconds / 2:
                continue  # it had been idle, and ended itself just before the request
            if status == -signal.SIGALRM:
                raise ProgramRefused(
                    f"the program could not be read within {self._seconds:g} s: it is damaged, or too large "
                    "for this server; export it again, or make it smaller"
                )
            raise ProgramRefused(
                "the program is damaged: the program inspector crashed on it "
                f"(exit status {status}); export it again"
            )

    def _running(self) -> _Child:
        if self._child is not None and self._child.is_running():
            return self._child
        self._end()
        child = _Child(self._seconds, self._memory_bytes, self._idle_seconds)
        self._child, self._ending = child, weakref.finalize(self, child.end)
        self._starts += 1
        if child.receive() is None:
            status = child.wait()
            self._end()
            raise StratagemError(
                f"the program inspector did not start (exit status {status}); its standard error says why"
            )
        return child

    def _end(self) -> None:
        if self._ending is not None:
            self._ending()
        self._child = self._ending = None
