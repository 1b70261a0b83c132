"""The benchmarks, each a program that prints its figures as JSON."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Program:
    """One benchmark.

    Attributes:
        name: Its module in `benchmarks`.
        title: Its title in the report.
        about: What it compares, in a sentence or two.
        form: The form of its figures: see `markdown`.
        takes_races: Whether `--race` selects a part of it.
    """

    name: str
    title: str
    about: str
    form: Literal["races", "served races", "times", "records"]
    takes_races: bool = False

    def arguments(self, rounds: int | None, races: Sequence[str]) -> list[str]:
        """Return the arguments after the module's name."""
        chosen = [word for race in races for word in ("--race", race)] if self.takes_races else []
        return [*([] if rounds is None else ["--rounds", str(rounds)]), *chosen, "--json"]


PROGRAMS = (
    Program(
        "strategies",
        "Synchronous strategies",
        "Examples per second, feeding included; every contender trains the same model on the same NumPy batches, from the "
        "same parameters, in processes of its own and at the number of threads that suits it best.",
        "races",
        takes_races=True,
    ),
    Program(
        "parameter_servers",
        "Parameter servers",
        "Global steps per second with one server, batches of 100 rows for each worker, against TensorFlow's servers and "
        "against as many workers that train alone, with no server at all.",
        "served races",
        takes_races=True,
    ),
    Program(
        "tables",
        "Tables by row",
        "Global steps per second with one server and two workers, batches of 256 examples, rows of 16 numbers, Adagrad, and "
        "the memory that processes came to, against TensorFlow's `embedding_lookup` on its servers and PyTorch's DDP with "
        "`EmbeddingBag(sparse=True)`, whose two workers count a batch each in every step.",
        "races",
        takes_races=True,
    ),
    Program(
        "tfrecord",
        "TFRecord files",
        "Reading, checking and parsing files of 28×28 images, against tf.data with as many threads.",
        "records",
    ),
    Program(
        "wire",
        "The wire",
        "A round trip of an array between two processes, against a bare loop that moves the same bytes with as many copies.",
        "times",
    ),
    Program(
        "session",
        "Session variables",
        "`variable.assign(x)` and `variable.read()`, against the same bare loops.",
        "times",
    ),
    Program(
        "all_reduce",
        "All-reduce",
        "The sum of two processes' arrays, against a bare one over shared memory, and against PyTorch's gloo.",
        "times",
    ),
)


def run(program: Program, rounds: int | None, races: Sequence[str]) -> dict[str, Any]:
    """Run a benchmark. Return its figures, or how it failed. Its other output goes to the terminal."""
    arguments = program.arguments(rounds, races)
    load = os.getloadavg()[0]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{program.name}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        printed, _ = process.communicate()
    except BaseException:
        process.terminate()  # it ends what it has started
        process.wait()
        raise
    found: dict[str, Any] = {
        "program": program.name,
        "arguments": arguments,
        "load before": load,
        "seconds": time.monotonic() - began,
        "exit code": process.returncode,
    }
    try:
        return {**found, "figures": json.loads(printed)}
    except json.JSONDecodeError:
        return found
