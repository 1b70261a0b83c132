"""A group of one: everything is what it was, and nobody is called."""

import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

from stratagem.collectives import Group
from stratagem.errors import StrategyError
from stratagem.runtime.wire import Handler, Peer


class Nobody:
    """Neither registers nor calls."""

    def register(self, name: str, handler: Handler) -> None:
        raise AssertionError(f"registered {name}")

    def __getitem__(self, task: str) -> Peer:
        raise AssertionError(f"called {task}")


def group_of(tasks: list[str], index: int = 0) -> Group:
    nobody = cast(Any, Nobody())
    return Group(nobody, nobody, tasks, index)


def alone() -> Group:
    return group_of(["/job:worker/task:0"])


def test_one_worker_gets_back_what_it_gives() -> None:
    array = np.arange(3.0)
    with alone() as group:
        assert group.all_reduce([array])[0] is array
        assert group.all_gather([array]) == [[array]]
        assert group.broadcast([array])[0] is array
        group.barrier()
        assert not group.all_done
        assert not group.all_reduce([array], empty=True, done=True)[0].any()
        assert group.all_done
    group.close()


def test_wrong_members_are_refused() -> None:
    with pytest.raises(StrategyError, match="worker 2 of a group of 1"):
        group_of(["/job:worker/task:0"], 2)
    with pytest.raises(StrategyError, match="twice"):
        group_of(["/job:worker/task:0"] * 2)
    with pytest.raises(StrategyError, match="root is 1"):
        alone().broadcast([], root=1)


def test_needs_no_jax() -> None:
    code = "import sys, stratagem.collectives; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
