"""Processes that write snapshots, run by the tests as a script: one shard, or snapshot after snapshot until they are killed."""

import json
import os
import sys

import numpy as np

from stratagem.keep import Manifest, Snapshots, TensorEntry, write_shard

PARTS = 3
ROWS = 100_000


def tell(what: object) -> None:
    """Write a line to standard output: all of it or nothing, also by a process that is killed."""
    os.write(1, f"{what}\n".encode())


def write_one(root: str, step: int, part: int) -> None:
    """One shard of one snapshot; its record goes to standard output."""
    tensors = {f"rows/part_{part}": np.full((ROWS, 4), step, np.float32), f"n{part}": np.array(step)}
    record = write_shard(Snapshots(root).directory(step), f"ps-{part}", tensors)
    tell(json.dumps(record.to_dict()))


def write_on(root: str) -> None:
    """Go on from the newest snapshot that can be read; tell of each step once it is finished."""
    snapshots = Snapshots(root, durable=False)  # the disk itself survives what the test does
    newest = snapshots.newest_readable()
    step = newest.step if newest is not None else -1
    tell(step)
    while True:
        step += 1
        directory = snapshots.directory(step)
        records = []
        for part in range(PARTS):
            tensors = {f"rows/part_{part}": np.full((ROWS, 4), step, np.float32), f"n{part}": np.array(step)}
            records.append(write_shard(directory, f"ps-{part}", tensors, durable=False))
        parts = [(record, f"rows/part_{part}") for part, record in enumerate(records)]
        entries = {
            f"n{part}": TensorEntry.join([(record, f"n{part}")]) for part, record in enumerate(records)
        }
        snapshots.commit(
            Manifest(step, records, {"rows": TensorEntry.join(parts), **entries}, {"step": step})
        )
        tell(step)
        snapshots.prune(keep=2)


def fork_writers(root: str) -> None:
    """For each line of standard input a new writer, forked to have everything imported; tell when it is gone."""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tell(os.getpid())
            write_on(root)
        os.waitpid(pid, 0)
        tell("gone")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        fork_writers(sys.argv[1])
    else:
        write_one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
