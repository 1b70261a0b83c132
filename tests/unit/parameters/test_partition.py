"""Which server holds what."""

import logging

import pytest

import stratagem as sg
from stratagem.errors import StrategyError
from stratagem.parameters.partition import Leaf, partition
from stratagem.parameters.split import Piece

LEAVES = [
    Leaf("w1", (10, 4), "float32"),
    Leaf("b1", (4,), "float32"),
    Leaf("w2", (4, 3), "float32"),
    Leaf("scale", (), "float32"),
]
FREE = [None] * len(LEAVES)


def test_in_turn_by_default() -> None:
    assert partition(LEAVES, None, 2, FREE) == [[Piece(0), Piece(2)], [Piece(1), Piece(3)]]


def test_by_load() -> None:
    held = partition(LEAVES, sg.GreedyLoadBalancing(), 2, FREE)
    assert held == [[Piece(0)], [Piece(1), Piece(2), Piece(3)]]


def test_cut_by_rows_as_tensorflow_cuts_and_scalars_never() -> None:
    held = partition(LEAVES, sg.FixedShards(4), 3, FREE)
    pieces = [piece for server in held for piece in server]
    assert sorted((piece.start, piece.stop) for piece in pieces if piece.leaf == 0) == [
        (0, 3),
        (3, 6),
        (6, 8),
        (8, 10),
    ]
    assert [piece for piece in pieces if piece.leaf == 3] == [Piece(3)]
    assert len(pieces) == 13


def test_what_must_not_be_cut_stays_whole_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="stratagem"):
        held = partition(LEAVES[:1], sg.FixedShards(2), 2, ["its rows are mixed by a norm"])
    assert held == [[Piece(0)], []]
    assert "w1 is not cut into 2 parts, it stays whole: its rows are mixed by a norm" in caplog.text


@pytest.mark.parametrize("told", [2, [2, 1]])
def test_a_function_of_the_users_own(told: object) -> None:
    held = partition(LEAVES[:1], lambda shape, dtype: told, 2, FREE[:1])
    assert held == [[Piece(0, 0, 5)], [Piece(0, 5, 10)]]


@pytest.mark.parametrize(
    ("partitioner", "words"),
    [
        ("round robin", "partitioner is 'round robin'; give"),
        (lambda shape, dtype: 0, "says 0 for w1 of shape"),
        (lambda shape, dtype: [1, 2], "first axis only"),
        (lambda shape, dtype: "two", "says 'two' for w1"),
    ],
)
def test_a_partitioner_that_is_none_is_refused(partitioner: object, words: str) -> None:
    with pytest.raises(StrategyError, match=words):
        partition(LEAVES, partitioner, 2, FREE)  # type: ignore[arg-type]
