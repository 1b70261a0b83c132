"""The process that reads foreign programs: one request after another on standard input, answers on output.

MLIR's parser can crash, hang or allocate without end on malformed bytes. Here that costs a small process
without secrets instead of a server. It does not import JAX, and ends when its input does, when a request
takes too long, or when nobody has asked for a while.
"""

import json
import os
import resource
import signal
import struct
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from stratagem.errors import ProgramRefused
from stratagem.runtime.programs.limits import ProgramLimits
from stratagem.runtime.programs.summary import TensorSpec
from stratagem.runtime.programs.walk import Findings, walk

_LENGTHS = struct.Struct("<QQ")


def write_message(stream: IO[bytes], header: dict[str, Any], payload: bytes) -> None:
    """Writes one message: two lengths, a header as JSON, a payload."""
    text = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(text), len(payload)))
    stream.write(text)
    stream.write(payload)
    stream.flush()


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """Reads one message; `None` at the end of the stream, also in the middle of a message."""
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
    """Walks one module, and puts what was found, or why it is refused, into a message."""
    limits = header["limits"]
    try:
        findings = walk(module, header["platform"], None if limits is None else ProgramLimits(**limits))
    except ProgramRefused as refusal:
        return {"refused": str(refusal)}, b""
    fields = asdict(findings)
    return {"found": fields}, fields.pop("module")


def findings_from(fields: dict[str, Any], module: bytes) -> Findings:
    """Rebuilds on the other side what `answer` took apart."""

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
    """Serves requests until the input ends.

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
    # From here on, MLIR's complaints about foreign bytes are no news; up to here, a broken installation was.
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
