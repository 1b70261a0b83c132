"""PyTorch's DistributedDataParallel over gloo, with `EmbeddingBag(sparse=True)`: every worker has the whole table."""

import datetime
import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.parameter_servers.task import Run
from benchmarks.tables.task import TableTask
from benchmarks.tables.work import DIM, FIRST_ACCUMULATOR, LEARNING_RATE, TableWork

_AHEAD = 8
"""How many steps worker 0 announces to the others at once."""
_LOOK_SECONDS = 0.0005


class _Model(nn.Module):
    def __init__(self, work: TableWork) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(size, DIM, mode="mean", sparse=True) for size in work.sizes)
        for bag in self.bags:
            nn.init.uniform_(bag.weight, -0.05, 0.05)
        self.vector = nn.Parameter(torch.from_numpy(work.vector()))

    def forward(self, ids: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([bag(each) for bag, each in zip(self.bags, ids, strict=True)], dim=1) @ self.vector


def embedding_bags(task: TableTask) -> Run:
    workers = task.cluster["worker"]
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{workers[0]}",
        rank=task.index,
        world_size=len(workers),
        timeout=datetime.timedelta(minutes=30),
    )
    model = DistributedDataParallel(_Model(task.work))
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=LEARNING_RATE, initial_accumulator_value=FIRST_ACCUMULATOR
    )
    names = task.work.names()
    feed = task.work.batches(task.index, len(workers))
    batches_taken = 0
    counts = _Announcing() if task.index == 0 else _Listening()

    def step(batch: dict[str, Any]) -> float:
        optimizer.zero_grad()
        ids = [torch.from_numpy(batch[name]) for name in names]
        loss = torch.mean((model(ids) - torch.from_numpy(batch["target"])) ** 2)
        loss.backward()
        optimizer.step()
        return float(loss)

    def run(turns: Iterable[object]) -> tuple[int, float]:
        """Take as many steps as worker 0 does: it alone looks at the clock.

        What counts is the batches of all workers, as an asynchronous server counts them.
        """
        nonlocal batches_taken
        loss = 0.0
        for steps in counts.steps(iter(turns)):
            for batch in itertools.islice(feed, steps):
                loss = step(batch)
            batches_taken += steps * len(workers)
        return batches_taken, loss

    return run


class _Announcing:
    """Worker 0's numbers of steps, each of which the others are told before it takes them."""

    def steps(self, turns: Iterator[object]) -> Iterator[int]:
        for steps in iter(lambda: sum(1 for _ in itertools.islice(turns, _AHEAD)), 0):
            distributed.broadcast(torch.tensor([steps]), 0)
            yield steps


class _Listening:
    """What worker 0 announces, until this worker's turns are over; what comes then is for its next ones."""

    def __init__(self) -> None:
        self._steps = torch.tensor([0])
        self._under_way: Any = None

    def steps(self, turns: Iterator[object]) -> Iterator[int]:
        while True:
            self._under_way = self._under_way or distributed.broadcast(self._steps, 0, async_op=True)
            while not self._under_way.is_completed():
                if next(turns, self) is self:
                    return
                time.sleep(_LOOK_SECONDS)  # PyTorch has no wait that the harness could interrupt
            self._under_way = None
            yield int(self._steps)
