"""Pipelines: every row once, in an order that follows from the seed, and gone on with at the exact next batch."""

import gc
import logging
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratagem as sg
from stratagem.data import (
    FixedLenFeature,
    make_example,
    parse_example,
    pipeline,
    read_tfrecord,
    shard_files,
    write_tfrecord,
)
from stratagem.data.numbered_rows import RecordRows

ROWS = 23
PATIENCE = 30.0
FEATURES = {"x": FixedLenFeature((), "int64")}


def parse(batch: Any) -> Any:
    return parse_example(batch, FEATURES)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files: of 10, 8 and 5 records."""
    paths = []
    for number, (first, stop) in enumerate([(0, 10), (10, 18), (18, ROWS)]):
        paths.append(tmp_path / f"part-{number}.tfrecord")
        write_tfrecord(paths[-1], (make_example({"x": x}) for x in range(first, stop)))
    return paths


def drawn(batches: Any) -> list[list[int]]:
    return [[int(x) for x in np.ravel(batch["x"] if isinstance(batch, dict) else batch)] for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [x for batch in batches for x in batch]


def stream(count: int = ROWS) -> Iterator[int]:
    yield from range(count)


def test_files_in_order(files: list[Path]) -> None:
    batches = drawn(pipeline(files, 4, parse=parse))
    assert flat(batches) == list(range(ROWS))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3]


def test_one_path_and_no_parse(files: list[Path]) -> None:
    (batch,) = pipeline(files[0], 100)
    assert isinstance(batch, sg.data.RecordBatch)
    assert list(batch) == list(read_tfrecord(files[0]))


def test_shuffled_files_give_every_record_once_in_the_order_of_the_seed(files: list[Path]) -> None:
    one, two, other = (flat(drawn(pipeline(files, 4, parse=parse, shuffle_seed=seed))) for seed in (1, 1, 2))
    assert sorted(one) == list(range(ROWS))
    assert one == two != other
    assert one != list(range(ROWS))


def test_each_pass_is_shuffled_anew_as_epochs_of_one_pass_are() -> None:
    batches = pipeline(np.arange(ROWS), 4, shuffle_seed=3)
    passes = [drawn(batches) for _ in range(3)]
    assert all(sorted(flat(each)) == list(range(ROWS)) for each in passes)
    assert passes[0] != passes[1] != passes[2]
    assert drawn(pipeline(np.arange(ROWS), 4, shuffle_seed=3, epochs=3)) == [
        *passes[0],
        *passes[1],
        *passes[2],
    ]


Pair = namedtuple("Pair", "left right")


def test_columns() -> None:
    source = {"x": np.arange(5), "pair": Pair(np.arange(10).reshape(5, 2), [5, 6, 7, 8, 9])}
    batches = list(pipeline(source, 3))
    assert batches[0]["pair"].left.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batches[1]["pair"].right.tolist() == [8, 9]
    images, labels = next(iter(pipeline((np.zeros((4, 8)), np.arange(4)), 2)))
    assert images.shape == (2, 8) and labels.tolist() == [0, 1]


def test_sequences_of_elements_are_stacked() -> None:
    batches = list(pipeline([{"x": x, "y": (x, [x])} for x in range(3)], 2))
    assert batches[0]["x"].tolist() == [0, 1] and batches[1]["y"][1][0].tolist() == [2]
    assert drawn(pipeline(range(5), 2)) == [[0, 1], [2, 3], [4]]


def test_streams_go_without_grain() -> None:
    code = """
import sys
sys.modules["grain"] = None
import numpy as np, stratagem as sg
batches = sg.data.pipeline((x for x in range(5)), 2)
print([batch.tolist() for batch in batches])
try:
    sg.data.pipeline(np.arange(3), 2)
except ImportError as error:
    assert isinstance(error, sg.MissingExtra)
    print(error)
assert "jax" not in sys.modules
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert out.stdout.startswith("[[0, 1], [2, 3], [4]]\n"), out.stderr
    assert "pip install 'stratagem[data]'" in out.stdout


SOURCES: list[tuple[str, dict[str, Any]]] = [
    ("array", {}),
    ("array", {"shuffle_seed": 7}),
    ("array", {"shuffle_seed": 7, "epochs": 2}),
    ("array", {"shuffle_seed": 7, "epochs": None}),
    ("array", {"shuffle_seed": 7, "shard": (1, 2), "drop_remainder": True}),
    ("array", {"shuffle_seed": 7, "prefetch": 0}),
    ("array", {"shuffle_seed": 7, "threads": 3, "prefetch": 5}),
    ("files", {"shuffle_seed": 7}),
    ("list", {"epochs": 2}),
    ("stream", {}),
    ("stream", {"prefetch": 0, "shard": (1, 3)}),
]


@pytest.mark.parametrize(
    ("kind", "options", "passes"),
    [
        (kind, options, passes)
        for kind, options in SOURCES
        for passes in (0, 1)
        if options.get("epochs", 1) is not None or not passes  # a pass without end has no second one
    ],
)
def test_goes_on_with_the_exact_next_batch(
    files: list[Path], kind: str, options: dict[str, Any], passes: int
) -> None:
    def new() -> Any:
        source: Any = {"array": np.arange(ROWS), "list": list(range(ROWS)), "files": files, "stream": None}[
            kind
        ]
        if kind == "stream":
            source = Anew()
        return pipeline(source, 3, parse=parse if kind == "files" else None, **options)

    class Anew:
        def __iter__(self) -> Iterator[int]:
            return stream()

    whole = new()
    for _ in range(passes):
        drawn(whole)
    states, batches = [whole.state()], []
    for batch in whole:
        batches.append(flat(drawn([batch])))
        states.append(whole.state())
        if len(batches) == 20:
            break
    assert len(batches) >= 2
    for number, state in list(enumerate(states))[:: 1 if len(states) < 10 else 3]:
        resumed = new()
        resumed.restore(state)
        rest = iter(resumed)
        assert drawn([next(rest) for _ in batches[number:]]) == batches[number:]
        if len(batches) < 20:
            assert next(rest, None) is None
        else:
            del rest


def test_a_state_is_plain_values() -> None:
    batches = pipeline(np.arange(ROWS), 4, shuffle_seed=1)
    next(iter(batches))
    assert batches.state() == {
        "passes": 0,
        "batches": 1,
        "batch_size": 4,
        "shuffle_seed": 1,
        "shard": 0,
        "shards": 1,
        "epochs": 1,
        "drop_remainder": False,
        "rows": ROWS,
        "source": "arrays",
    }


def test_a_state_for_so_many_steps() -> None:
    batches = pipeline(np.arange(ROWS), 4, shuffle_seed=1)
    assert batches.batches_per_epoch == 6
    both = [*drawn(batches), *drawn(batches)]
    for steps in range(12):
        resumed = pipeline(np.arange(ROWS), 4, shuffle_seed=1)
        resumed.restore(batches.state(steps))
        assert drawn([next(iter(resumed))]) == [both[steps]]


@pytest.mark.parametrize("epochs", [1, 3, None])
def test_workers_in_step_go_on_where_the_chief_stood(epochs: int | None) -> None:
    def shards() -> list[Any]:
        return [
            pipeline(np.arange(ROWS), 4, shuffle_seed=1, shard=(index, 2), epochs=epochs)
            for index in range(2)
        ]

    whole = [[batch.tolist() for batch in islice(shard, 3)] for shard in shards()]
    chief, _ = shards()
    assert [next(iter(chief)).tolist()] == whole[0][:1]
    resumed = shards()
    for shard in resumed:
        shard.restore(chief.state())
    assert [[batch.tolist() for batch in islice(shard, 2)] for shard in resumed] == [
        each[1:] for each in whole
    ]


def test_the_same_files_in_another_order_are_other_batches(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "other")]
    for file in files:
        write_tfrecord(file, [file.name.encode()] * 4)
    state = pipeline(files, 2).state()
    pipeline(files, 2).restore(state)
    with pytest.raises(sg.DataError, match=r"source was .* and is "):
        pipeline(files[::-1], 2).restore(state)


def test_a_pass_that_was_left_is_over() -> None:
    batches = pipeline(np.arange(ROWS), 4, shuffle_seed=1)
    next(iter(batches))
    second = drawn(batches)
    whole = pipeline(np.arange(ROWS), 4, shuffle_seed=1)
    assert [drawn(whole), drawn(whole)][1] == second


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 5}, "batch_size was 4 and is 5"),
        ({"shuffle_seed": 2}, "shuffle_seed was 1 and is 2"),
        ({"shard": (0, 2)}, "shards was 1 and is 2"),
        ({"source": np.arange(9)}, "rows was 23 and is 9"),
    ],
)
def test_a_state_of_other_batches_is_refused(options: dict[str, Any], told: str) -> None:
    usual: dict[str, Any] = {"source": np.arange(ROWS), "batch_size": 4, "shuffle_seed": 1}
    state = pipeline(**usual).state()
    with pytest.raises(sg.DataError, match=told):
        pipeline(**{**usual, **options}).restore(state)


@pytest.mark.parametrize("state", [{}, {"passes": 0}, {"passes": "a", "batches": 0}, None])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(sg.DataError, match="not the state of a pipeline"):
        pipeline(np.arange(3), 1).restore(state)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["files", "array", "stream"])
def test_shards_share_all_rows_out(files: list[Path], kind: str, count: int) -> None:
    found = []
    for index in range(count):
        source: Any = {"files": files, "array": np.arange(ROWS), "stream": stream()}[kind]
        found += flat(
            drawn(pipeline(source, 4, shard=(index, count), parse=parse if kind == "files" else None))
        )
    assert sorted(found) == list(range(ROWS))


def test_fewer_files_than_workers_is_told(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratagem")
    assert flat(drawn(pipeline(files, 4, shard=(1, 4), parse=parse))) == list(range(1, ROWS, 4))
    assert "fewer than workers" in caplog.text


def test_a_shard_may_be_an_input_context_or_made_before(files: list[Path]) -> None:
    context = sg.InputContext(num_input_pipelines=3, input_pipeline_id=1)
    assert flat(drawn(pipeline(files, 4, shard=context, parse=parse))) == list(range(10, 18))
    assert flat(drawn(pipeline(shard_files(files, 3, 1), 4, parse=parse))) == list(range(10, 18))
    assert flat(drawn(pipeline(shard_files(files[:1], 2, 1), 4, parse=parse))) == [1, 3, 5, 7, 9]
    with pytest.raises(sg.DataError, match="one of the two"):
        pipeline(shard_files(files, 3, 1), 4, shard=(0, 2))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"processes": 1.5}, "processes is 1.5"),
        ({"shuffle_seed": -1}, "shuffle_seed is -1"),
        ({"shard": 3}, "distribute_from_function"),
        ({"shard": (2, 2)}, "shard 2 of 2"),
        ({"source": {"a": np.zeros(2), "b": np.zeros(3)}}, r"source\['a'\]: 2, source\['b'\]: 3"),
        ({"source": (1, 2)}, "no rows"),
        ({"source": 7}, "give paths"),
        ({"source": stream(), "shuffle_seed": 1}, "shuffle_batch"),
        ({"source": stream(), "processes": 1}, "no numbers"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(sg.DataError, match=told):
        pipeline(**{"source": np.arange(3), "batch_size": 1, **options})


def test_a_stream_that_can_be_passed_over_once_has_one_epoch() -> None:
    batches = iter(pipeline(stream(3), 3, epochs=2))
    assert drawn([next(batches)]) == [[0, 1, 2]]
    with pytest.raises(sg.DataError, match="once"):
        next(batches)


@pytest.mark.parametrize("epochs", [1, 2, None])
@pytest.mark.parametrize("source", [np.zeros((0, 2)), [], iter(())])
def test_nothing_gives_nothing(source: Any, epochs: int | None) -> None:
    assert list(pipeline(source, 2, epochs=epochs)) == []
    assert list(pipeline(np.arange(1), 2, drop_remainder=True, epochs=epochs)) == []


def test_damage_and_change_are_named(files: list[Path]) -> None:
    records = RecordRows.of(files)
    data = bytearray(files[1].read_bytes())
    place = int(records.indices[1].offsets[2])
    data[place + 14] ^= 1
    files[1].write_bytes(bytes(data))
    with pytest.raises(sg.DataError, match=r"part-1.*changed"):
        records.take(np.array([3, 12]))
    with pytest.raises(sg.DataError, match=rf"part-1.*byte {place}.*checksum"):
        RecordRows.of(files).take(np.array([3, 12]))
    with pytest.raises(sg.DataError, match="checksum"):
        list(pipeline(files, 4, parse=parse))


def test_records_of_many_files_know_where_they_are_from(files: list[Path]) -> None:
    batch = RecordRows.of(files).take(np.array([20, 0, 1, 12, 21]))
    assert parse(batch)["x"].tolist() == [20, 0, 1, 12, 21]
    assert [str(batch.where(row)).split("part-")[1][0] for row in range(5)] == ["2", "0", "0", "1", "2"]


def test_an_error_of_parse_comes_through() -> None:
    def fail(batch: Any) -> Any:
        raise KeyError("label")

    for source in (np.arange(3), stream(3)):
        with pytest.raises(KeyError, match="label"):
            list(pipeline(source, 2, parse=fail))


@pytest.mark.parametrize("kind", ["array", "stream"])
@pytest.mark.parametrize("end", ["exhausted", "closed", "forgotten"])
def test_threads_end_with_their_iterator(kind: str, end: str) -> None:
    before = set(threading.enumerate())
    seen: list[threading.Thread] = []

    def watched(batch: Any) -> Any:
        seen.append(threading.current_thread())
        return batch

    source: Any = np.arange(ROWS) if kind == "array" else stream()
    batches: Any = iter(pipeline(source, 2, parse=watched))
    next(batches)
    assert set(seen) - before, "nothing was read ahead"
    if end == "exhausted":
        list(batches)
    elif end == "closed":
        batches.close()
    del batches
    gc.collect()
    for thread in set(seen) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
