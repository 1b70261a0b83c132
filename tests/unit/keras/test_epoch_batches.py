"""Which batches Keras goes through where workers take turns: its own iterators, with the turns of one of two workers."""

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras.src.backend.jax.trainer import JAXEpochIterator

from stratagem.engines.replicas import Lookahead
from stratagem.keras.epoch_batches import NO_BATCH, keep_own_batches

ROWS = np.arange(5, dtype=np.float32)


def in_turns(worker: int) -> Any:
    """What a strategy of two workers tells one of them of its turns."""

    def deal() -> Callable[[Any], Any]:
        places = itertools.count()
        return lambda batch: batch if next(places) % 2 == worker else None

    return SimpleNamespace(
        feed=SimpleNamespace(deal=deal, takes_turns=True), workers=SimpleNamespace(index=worker, count=2)
    )


def whole_batch(deal: Callable[[Any], Any], batch: Any) -> Any:
    return deal(batch)


def iterator(worker: int, x: Any, **options: Any) -> Any:
    made = JAXEpochIterator(x=x, **options)
    keep_own_batches(made, in_turns(worker), whole_batch)
    made.reset()
    return made


def epoch(made: Any) -> list[tuple[int, int, list[Any]]]:
    """What Keras is given in an epoch: the numbers of batches, and their rows."""
    with made.catch_stop_iteration():
        return [
            (begin, end, [batch if batch is NO_BATCH else np.ravel(batch[0]).tolist() for batch in batches])
            for begin, end, batches in made
        ]
    return []


def endless() -> Iterator[Any]:
    for number in itertools.count():
        yield (np.full(1, number, np.float32),)


def test_batches_are_numbered_without_gaps() -> None:
    for worker, expected in enumerate([[0, 2, 4], [1, 3]]):
        made = iterator(worker, ROWS, batch_size=1)
        assert made.num_batches == len(expected)
        for _ in range(2):
            assert epoch(made) == [(place, place, [[row]]) for place, row in enumerate(expected)]


def test_several_batches_at_once() -> None:
    made = iterator(0, ROWS, batch_size=1, steps_per_execution=2)
    assert epoch(made) == [(0, 1, [[0], [2]]), (2, 3, [[4]])]


def test_steps_of_an_epoch_are_those_of_all_workers_together() -> None:
    made = iterator(1, endless(), steps_per_epoch=5)
    assert made.num_batches == 2
    # Turns begin anew with each epoch, and all workers are at the same place in the data.
    assert epoch(made) == [(0, 0, [[1]]), (1, 1, [[3]])]
    assert epoch(made) == [(0, 0, [[6]]), (1, 1, [[8]])]


def test_data_that_nobody_knows_the_length_of() -> None:
    made = iterator(0, (batch for batch in itertools.islice(endless(), 3)))
    assert made.num_batches is None
    with pytest.warns(UserWarning, match="ran out of data"):  # Keras says so of every finite generator
        assert epoch(made) == [(0, 0, [[0]]), (1, 1, [[2]])]


def test_an_epoch_without_a_batch_of_this_worker() -> None:
    made = iterator(1, ROWS[:1], batch_size=1)
    assert made.num_batches == 0
    assert epoch(made) == [(0, 0, [NO_BATCH])]


@pytest.mark.parametrize("distance", [1, 2])
def test_steps_are_told_of_the_batches_to_follow_in_an_epoch(distance: int) -> None:
    strategy, lookahead = in_turns(0), Lookahead(distance)
    strategy.engine = SimpleNamespace(replicas=SimpleNamespace(lookahead=lookahead))
    made = JAXEpochIterator(x=np.arange(9, dtype=np.float32), batch_size=1, steps_per_execution=2)
    keep_own_batches(made, strategy, whole_batch, looks_ahead=True)
    made.reset()
    for _ in range(2):
        pairs = []
        for *_, batches in made:
            for batch in batches:
                following = lookahead.after(batch)
                pairs.append((batch[0].item(), None if following is None else following[0].item()))
        rows = [0, 2, 4, 6, 8]
        assert pairs == list(zip(rows, [*rows[distance:], *[None] * distance], strict=True))
