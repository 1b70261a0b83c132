"""The recommender whose users and items are tables by row: it learns, and there are rows for the ids of its clicks alone."""

import re

import numpy as np
import pytest

from drills.nursery import Nursery
from proofs import TABLES, Proves

EXAMPLE = "examples/recommender.py"
USERS, ITEMS, STEPS, BATCH = 20_000, 2_000, 200, 256
SMALL = (
    *("--users", USERS, "--items", ITEMS, "--dim", 8),
    *("--steps", STEPS, "--batch_size", BATCH),
)


def distinct_ids() -> tuple[int, int]:
    """How many users and items the clicks are of."""
    random = np.random.default_rng(0)
    ids = [[(most ** random.random(BATCH)).astype(int) for most in (USERS, ITEMS)] for _ in range(STEPS)]
    users, items = (len(np.unique(np.concatenate(column))) for column in zip(*ids, strict=True))
    return users, items


def results(out: str) -> list[tuple[float, tuple[int, int]]]:
    """For each process that has trained, its accuracy on other clicks, and the rows of users and items that it saw."""
    accuracies = re.findall(r"accuracy on clicks never seen: ([\d.]+)", out)
    rows = re.findall(rf"(\d+) of {USERS} users and (\d+) of {ITEMS} items", out)
    return [
        (float(accuracy), (int(users), int(items)))
        for accuracy, (users, items) in zip(accuracies, rows, strict=True)
    ]


@pytest.mark.parametrize(
    ("strategy", "name"),
    [("one-device", "OneDevice"), ("mirrored", "Mirrored"), ("central-storage", "CentralStorage")],
)
def test_in_one_process(nursery: Nursery, strategy: str, name: str, proves: Proves) -> None:
    proves(TABLES, name)
    ((accuracy, rows),) = results(nursery.said(EXAMPLE, "--strategy", strategy, *SMALL))
    assert accuracy > 0.7
    assert rows == distinct_ids()


def test_on_parameter_servers(nursery: Nursery) -> None:
    job = ("stratagem", "run", "--ps", "2", "--workers", "2", EXAMPLE, "--strategy", "parameter-server")
    found = results(nursery.said(*job, *SMALL))
    assert len(found) == 2
    accuracy, rows = max(found, key=lambda result: result[1])  # of the worker that ended last
    assert accuracy > 0.7
    assert rows == distinct_ids()
