"""PyTorch's DistributedDataParallel over gloo, with the loop of its tutorials."""

import itertools

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.racing.work import LEARNING_RATE, Work
from benchmarks.strategies.task import Run, Task


def data_parallel(task: Task) -> Run:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{task.meeting_file}",
        rank=task.index,
        world_size=len(task.addresses),
    )
    model = DistributedDataParallel(_network(task.work))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loss_fn = nn.CrossEntropyLoss()
    # Class numbers are 64 bits wide in PyTorch.
    feed = itertools.cycle(
        [
            (pictures, labels.astype(np.int64))
            for pictures, labels in task.work.share(task.index, len(task.addresses))
        ]
    )

    def run(steps: int) -> float:
        for pictures, labels in itertools.islice(feed, steps):
            optimizer.zero_grad()
            loss = loss_fn(model(torch.from_numpy(pictures)), torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
        return float(loss)

    return run


def _network(work: Work) -> nn.Sequential:
    modules: list[nn.Module] = []
    for matrix, vector in work.layers():
        layer = nn.Linear(*matrix.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(matrix.T))
            layer.bias.copy_(torch.from_numpy(vector))
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1])
