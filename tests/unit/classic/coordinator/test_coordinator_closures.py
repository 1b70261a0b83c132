"""What closures may be scheduled with."""

from typing import Any

import numpy as np
import pytest

from stratagem.classic.coordinator import PerWorkerDataset, RemoteValue
from stratagem.classic.coordinator.closures import copy_arguments
from stratagem.errors import StrategyError

DATASET = PerWorkerDataset("my_data:digits", {})


def test_arguments_are_kept_as_they_are_now() -> None:
    memory, batches = np.zeros(2), iter(DATASET)
    args, kwargs = copy_arguments([{"x": memory}, batches], {"rate": 0.1})
    memory += 1
    np.testing.assert_array_equal(args[0]["x"], [0, 0])
    assert args[1] is batches
    assert kwargs == {"rate": 0.1}
    assert copy_arguments((), None) == ((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (np.zeros(2), None, r"args is a single ndarray; give a tuple or list .* schedule\(fn, args=\(x,\)\)"),
        ({"x": 1.0}, None, "args is a single dict"),
        ((), [1.0], "kwargs is a single list; give a dictionary"),
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
        copy_arguments(args, kwargs)
