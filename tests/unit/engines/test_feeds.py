"""How batches are told apart."""

import numpy as np

from stratagem.engines.feeds import digest


def words(*numbers: int) -> np.ndarray:
    """An array of strings that no other array shares."""
    return np.asarray([f"word {number}" for number in numbers], object)


def test_strings_are_told_apart_by_what_they_say() -> None:
    assert digest({"word": words(1, 2)}) == digest({"word": words(1, 2)})
    assert digest({"word": words(1, 2)}) != digest({"word": words(2, 1)})
