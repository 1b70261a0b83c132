"""Rows under Adam, whose moments move only when a batch has the row: as PyTorch's `SparseAdam` does it."""

import numpy as np
import optax
import torch

import stratagem as sg

ROWS, DIM, STEPS, RATE = 50, 4, 200, 0.01
EPS = 1e-15
"""Almost none: PyTorch adds it before it corrects the bias of the second moment, optax after that."""


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [
        (random.integers(ROWS, size=12), random.standard_normal((12, DIM)).astype(np.float32))
        for _ in range(STEPS)
    ]


def of_torch(first: np.ndarray) -> np.ndarray:
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(first.copy()), freeze=False, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=RATE, eps=EPS)
    for ids, wanted in batches():
        optimizer.zero_grad()
        loss = ((embedding(torch.from_numpy(ids)) - torch.from_numpy(wanted)) ** 2).mean()
        loss.backward()
        optimizer.step()
    trained: np.ndarray = embedding.weight.detach().numpy()
    return trained


def test_adam_is_as_lazy_as_that_of_torch() -> None:
    strategy = sg.OneDeviceStrategy()
    table = sg.Table("rows", dim=DIM, rows=ROWS)
    state = strategy.init({}, optax.adam(RATE, eps=EPS), tables=[table])
    first = strategy.table(state, "rows").lookup(np.arange(ROWS))
    step = strategy.train_step(lambda params, batch, rows: ((rows["rows"](batch[0]) - batch[1]) ** 2).mean())
    for batch in strategy.distribute(batches()):
        state, _ = step(state, batch)
    trained = strategy.table(state, "rows").lookup(np.arange(ROWS))
    assert np.abs(trained - first).max() > 0.1
    np.testing.assert_allclose(trained, of_torch(first), rtol=1e-4, atol=1e-5)
