"""Arrays, sums and logs of several workers in one exchange."""

import json
from typing import Any

import numpy as np

from stratagem.engines.workers import Workers
from stratagem.keras.gathering import add_up, chief_arrays, gather_arrays, mean_logs


class Gathered(Workers):
    """Workers that have all brought their arrays; the last is this one."""

    cluster = None
    files = None
    is_chief = False

    def __init__(self, *others: bytes) -> None:
        self._others = others
        self.index = len(others)
        self.count = len(others) + 1

    def gather(self, array: Any) -> list[Any]:
        return [*(np.frombuffer(each, np.uint8) for each in self._others), array]

    def status(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing to leave."""


def packed(*arrays: Any) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


MINE: list[Any] = [np.float32(1.5), np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 4), np.float32)]
THEIRS: list[Any] = [
    np.float32(2.5),
    10 * np.arange(6, dtype=np.int32).reshape(2, 3),
    np.zeros((0, 4), np.float32),
]


def test_arrays_of_all_workers() -> None:
    found = gather_arrays(Gathered(packed(*THEIRS)), MINE)
    for each, expected in zip(found, [THEIRS, MINE], strict=True):
        for array, other in zip(each, expected, strict=True):
            np.testing.assert_array_equal(array, other)
            assert array.dtype == other.dtype


def test_arrays_of_the_chief() -> None:
    found = chief_arrays(Gathered(packed(*THEIRS)), MINE)
    for array, other in zip(found, THEIRS, strict=True):
        np.testing.assert_array_equal(array, other)


def test_what_workers_have_added_to_the_same_values_is_add_up() -> None:
    before = [np.float32(1), np.ones((2, 3), np.int32), MINE[2]]
    total, counts, empty = add_up(Gathered(packed(*THEIRS)), before, MINE)
    assert total == 1 + 1.5 + 0.5
    np.testing.assert_array_equal(counts, 11 * np.arange(6).reshape(2, 3) - 1)
    assert counts.dtype == np.int32
    assert empty.shape == (0, 4)


def test_logs_are_means_over_the_rows_of_all_workers() -> None:
    theirs = json.dumps([3, {"bias": 1.0, "each": [0.0, 4.0]}]).encode()
    found = mean_logs(Gathered(theirs), 1, {"bias": np.float32(5.0), "each": np.asarray([8.0, 0.0])})
    assert found["bias"] == 2.0
    np.testing.assert_array_equal(found["each"], [2.0, 3.0])
    assert mean_logs(Gathered(theirs), 0, {})["bias"] == 1.0
    assert mean_logs(Gathered(json.dumps([0, {}]).encode()), 0, {}) == {}
