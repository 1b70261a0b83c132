"""Processes that read ahead: the same batches in the same order, and none of them outlives its iterator."""

import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
PRELUDE = """
import multiprocessing, os, signal, sys
import numpy as np
import stratagem as sg

def parse(batch):
    return {"x": batch, "process": np.full(len(batch), os.getpid())}

def new(processes):
    return sg.data.pipeline(np.arange(23), 3, shuffle_seed=5, parse=parse, epochs=2, processes=processes)

def rows(batches):
    return [batch["x"].tolist() for batch in batches]
"""


def test_the_same_batches_gone_on_with_and_no_process_left(script: Callable[[str], Path]) -> None:
    path = script("""
    if __name__ == "__main__":
        expected = rows(new(0))
        batches = new(2)
        begun = iter(batches)
        first = [next(begun) for _ in range(5)]
        children = {int(batch["process"][0]) for batch in first}
        assert len(children) == 2 and os.getpid() not in children, children
        begun.close()
        assert not multiprocessing.active_children()
        assert rows(first) == expected[:5]

        other = new(1)
        other.restore(batches.state())
        assert rows(other) == expected[5:]
        assert not multiprocessing.active_children()
        print("well")
    """)
    out = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert out.stdout == "well\n", out.stderr


def test_they_end_when_their_reader_is_killed(script: Callable[[str], Path]) -> None:
    path = script("""
    if __name__ == "__main__":
        begun = iter(new(2))
        next(begun), next(begun)
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        children = [os.pidfd_open(int(child)) for child in process.stdout.readline().split()]
        process.kill()
    assert len(children) == 2
    for child in children:
        ended, _, _ = select.select([child], [], [], PATIENCE)
        os.close(child)
        assert ended
