"""The structure of batches as plain values, and how per-worker datasets may be named."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from stratagem.classic.coordinator import PerWorkerDataset
from stratagem.classic.coordinator.datasets import check_dataset, describe_structure, rebuild_structure
from stratagem.errors import DataError

Pair = namedtuple("Pair", ["left", "right"])


@pytest.mark.parametrize(
    "batch", [1, (1, 2), [1], {"b": 1, "a": (2, [3, {"c": 4}])}, (), {}, ({"leaf": 1}, [[2]])]
)
def test_there_and_back(batch: Any) -> None:
    structure, leaves = describe_structure(batch)
    assert rebuild_structure(structure, iter(leaves)) == batch


def test_what_cannot_be_told() -> None:
    with pytest.raises(DataError, match="this one has a Pair"):
        describe_structure({"pair": Pair(1, 2)})
    with pytest.raises(DataError, match="keys of a batch have to be strings"):
        describe_structure({1: 2})


@pytest.mark.parametrize("name", ["data", "data:", ":batches", "data.py:batches()", "data:a.b", "a b:c", 3])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(DataError, match="my_data:training_batches"):
        PerWorkerDataset(name, {})


def test_names_that_are_some() -> None:
    for name in ("data:batches", "my.package_1.data:training_batches"):
        assert PerWorkerDataset(name, {}).function == name


def test_what_makes_no_dataset() -> None:
    made = [np.zeros(2)]
    assert check_dataset("my_data:digits", made) is made
    with pytest.raises(DataError, match="my_data:digits returned 3; it has to return an iterable of batches"):
        check_dataset("my_data:digits", 3)
