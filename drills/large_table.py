"""Train a table that is several times as large as the memory that a worker may use."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from drills.large_table_task import DIM
from drills.processes import launcher, until
from drills.rounds import attempt
from drills.table import Outcome

MIB = 1 << 20
ALLOWED = 400 * MIB
"""What the worker may use; half of it is JAX itself."""
TIMES = 3
ROW_BYTES = 2 * 4 * DIM
"""A row and what Adagrad keeps of it."""
ROWS = TIMES * ALLOWED // ROW_BYTES
SECONDS = 300.0
_MEMORY = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""Where the kernel limits memory, and by which file of a group: the first and the second version of control groups."""


@contextlib.contextmanager
def limited(nbytes: int) -> Iterator[Path | None]:
    """Make a control group with this memory limit; `None` where there are no such groups."""
    for root, file in _MEMORY:
        group = root / f"stratagem-drill-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / file).exists():
                (group / file).write_text(str(nbytes))
                yield group
                return
        finally:
            _remove(group)
    yield None


def _remove(group: Path) -> None:
    """Remove a group, whose processes may be ending."""

    def is_removed() -> bool:
        with contextlib.suppress(OSError):
            group.rmdir()
        return not group.exists()

    until(f"the processes in {group} to end", is_removed, 10.0)


def train() -> None:
    """Train every row of the table once. Raise unless all rows exist and the worker stayed within its limit."""
    task = Path(__file__).with_name("large_table_task.py")
    with limited(ALLOWED) as group:
        environ = {"PYTHONPATH": str(task.parent.parent)}
        with launcher(
            *("--ps", "2", "--workers", "1", task, str(ROWS), str(group or "")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            environ=environ,
        ) as running:
            said, _ = running.process.communicate(timeout=SECONDS)
    text = said.decode()
    found = re.search(r"rows: (\d+), peak: (\d+)", text)
    assert found is not None, text[-3000:]
    rows, peak = int(found[1]), int(found[2])
    assert rows == ROWS, f"{rows} rows of {ROWS} have been trained"
    assert peak <= ALLOWED, f"the worker has used {peak // MIB} MiB, and {ALLOWED // MIB} are allowed"


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcome of one round, however many are asked for: nothing in it is random."""
    return [attempt(f"a table of {TIMES} times a worker's memory", "every row is trained", train)]
