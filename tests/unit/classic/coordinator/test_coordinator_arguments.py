"""What closures may be scheduled with, and what may make a dataset for them."""

from typing import Any

import numpy as np
import pytest

from stratagem.classic.coordinator import PerWorkerDataset, RemoteValue
from stratagem.classic.coordinator.arguments import kept_arguments
from stratagem.classic.coordinator.dataset_service import checked_batches
from stratagem.errors import DataError, StrategyError

DATASET = PerWorkerDataset("my_data:digits", {})


def test_arguments_are_kept_as_they_are_now() -> None:
    memory, batches = np.zeros(2), iter(DATASET)
    args, kwargs = kept_arguments([{"x": memory}, batches], {"rate": 0.1})
    memory += 1
    np.testing.assert_array_equal(args[0]["x"], [0, 0])
    assert args[1] is batches
    assert kwargs == {"rate": 0.1}
    assert kept_arguments((), None) == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (np.zeros(2), None, r"args is one ndarray; give a tuple or list .* schedule\(fn, args=\(x,\)\)"),
        ({"x": 1.0}, None, "args is one dict"),
        ((), [1.0], "kwargs is one list; give a dictionary"),
        (
            (DATASET,),
            None,
            r"the dataset of my_data:digits is an argument; give an iterator .* iter\(dataset\)",
        ),
        ((), {"batch": {"x": DATASET}}, "the dataset of my_data:digits is an argument"),
        (
            ([RemoteValue()],),
            None,
            r"a RemoteValue is an argument.*give its value, coordinator\.fetch\(value\)",
        ),
    ],
)
def test_arguments_that_cannot_be_meant(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        kept_arguments(args, kwargs)


def test_what_makes_no_dataset() -> None:
    made = [np.zeros(2)]
    assert checked_batches("my_data:digits", made) is made
    with pytest.raises(DataError, match="my_data:digits returned 3; it is to return an iterable of batches"):
        checked_batches("my_data:digits", 3)
