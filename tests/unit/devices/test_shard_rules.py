"""The rules that cut variables, and the cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratagem.devices import FixedShards, MaxSizeShards, MinSizeShards, ShardRule, part_name, row_ranges
from stratagem.errors import ConfigurationError

SHAPES = st.lists(st.integers(min_value=0, max_value=50), max_size=3).map(tuple)
RULES = (
    st.builds(FixedShards, st.integers(min_value=1, max_value=60))
    | st.builds(
        MinSizeShards, st.integers(min_value=1, max_value=999), st.integers(min_value=1, max_value=60)
    )
    | st.builds(MaxSizeShards, st.integers(min_value=1, max_value=999))
)


@pytest.mark.parametrize(
    ("rule", "shape", "shards"),
    [
        (FixedShards(2), (10, 3), 2),
        (FixedShards(8), (3, 3), 3),
        (MinSizeShards(4, 2), (6, 1), 2),
        (MinSizeShards(4, 10), (6, 1), 6),
        (MinSizeShards(5, 10), (6, 1), 5),
        (MinSizeShards(1000, 10), (6, 1), 1),
        (MaxSizeShards(4), (6, 1), 6),
        (MaxSizeShards(8), (5, 1), 3),
        (MaxSizeShards(4, 2), (6, 1), 2),
        (MaxSizeShards(1024), (6, 1), 1),
        (MaxSizeShards(3), (6, 1), 6),
    ],
)
def test_number_of_shards(rule: ShardRule, shape: tuple[int, ...], shards: int) -> None:
    assert rule.num_shards(shape, "float32") == shards


@given(RULES, SHAPES)
def test_scalars_stay_whole_and_every_shard_has_a_row(rule: ShardRule, shape: tuple[int, ...]) -> None:
    shards = rule.num_shards(shape, "float32")
    assert 1 <= shards <= max(1, *shape[:1], 1)
    if not shape:
        assert shards == 1
    else:
        assert sum(map(len, row_ranges(shape[0], shards))) == shape[0]


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=1, max_value=999))
def test_max_size_is_kept_where_rows_allow(rows: int, max_bytes: int) -> None:
    shards = MaxSizeShards(max_bytes).num_shards((rows, 3), "float32")
    assert all(len(part) * 12 <= max(12, max_bytes) for part in row_ranges(rows, shards))


def test_cuts_are_even_with_the_longer_ones_first() -> None:
    assert list(map(len, row_ranges(10, 4))) == [3, 3, 2, 2]
    assert row_ranges(0, 1) == [range(0, 0)]


@given(st.integers(min_value=1, max_value=200), st.data())
def test_cuts_cover_every_row_once(rows: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(min_value=1, max_value=rows))
    parts = row_ranges(rows, shards)
    lengths = list(map(len, parts))
    assert [row for part in parts for row in part] == list(range(rows))
    assert lengths == sorted(lengths, reverse=True) and max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("rows", "shards"), [(3, 4), (-1, 1), (0, 2), ("3", 1)])
def test_impossible_cuts(rows: int, shards: int) -> None:
    with pytest.raises(ConfigurationError, match="cannot be split into"):
        row_ranges(rows, shards)


def test_parts_are_named_after_their_variable() -> None:
    assert part_name("embedding", 3) == "embedding/part_3"


@pytest.mark.parametrize("value", [0, -1, "2", True, 1.5, None])
def test_arguments_are_checked(value: int) -> None:
    for make in (
        lambda: FixedShards(value),
        lambda: MinSizeShards(value, 2),
        lambda: MinSizeShards(2, value),
        lambda: MaxSizeShards(value),
        lambda: row_ranges(3, value),
    ):
        with pytest.raises(ConfigurationError, match="whole number of at least 1"):
            make()
    if value is not None:
        with pytest.raises(ConfigurationError, match="max_shards"):
            MaxSizeShards(8, value)
