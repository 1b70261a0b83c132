"""Snapshots of tables as differences from a base, which is written while rows go on changing."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest

from stratagem.errors import ProtocolError
from stratagem.keep import read_shard, write_shard
from stratagem.parameters import protocol, table_part
from stratagem.parameters.part import ModelPart
from stratagem.parameters.protocol import StackConfig
from stratagem.parameters.row_updates import row_spec, row_updates
from stratagem.parameters.table_part import TableBase, TablePart
from stratagem.runtime.programs import CompiledProgram
from stratagem.tables import Table
from stratagem.tables.row_store import SIZES, RowScalar
from stratagem.tables.stacks import stack_tables
from stratagem.tables.table_files import NewRows

DIM = 3
IDS = np.arange(-40, 400, dtype=np.int64)


@cache
def compiled() -> tuple[StackConfig, dict[str, CompiledProgram]]:
    """A table that is trained with Adam, whose ids are admitted when they are seen again."""
    (stack,) = stack_tables([Table("users", DIM, admit_after=1)])
    (update,) = row_updates([stack], optax.adam(0.1))
    first, updated = jax.jit(update.first), jax.jit(update.update)

    def program(function: Any) -> CompiledProgram:
        def run(arrays: Sequence[Any], wait: bool) -> Any:
            return jax.block_until_ready(function(*arrays)) if wait else function(*arrays)

        return cast(CompiledProgram, run)

    scalars = tuple((each.shape, str(each.dtype), each.tobytes()) for each in update.scalars)
    names = tuple(f"{kind} {size}" for kind in ("first", "update") for size in SIZES)
    config = StackConfig(
        ("users",), row_spec(stack, update), scalars, names[: len(SIZES)], names[len(SIZES) :]
    )
    programs = {name: program(first if name.startswith("first") else updated) for name in names}
    return config, programs


def new_part() -> TablePart:
    """A server's rows, of which there are none so far."""
    config, programs = compiled()
    return TablePart([config], programs)


def train(part: TablePart, steps: range) -> None:
    for step in steps:
        numbers = np.random.default_rng(step)
        ids = np.unique(numbers.choice(IDS, 60))
        gradients = numbers.normal(size=(len(ids), DIM)).astype(np.float32)
        part.update([(0, 1, [ids, gradients])], step)


def snapshot(base: TableBase, directory: Path) -> Any:
    """What a server does at a snapshot; the record of its shard."""
    arrays = base.differences()
    directory.mkdir()
    base.link(arrays, directory)
    record = write_shard(directory, "ps-0", arrays)
    base.renew_if_due(arrays)
    return record


def restored(directory: Path, record: Any, step: int) -> TablePart:
    part = new_part()
    TableBase(part, directory / "elsewhere", "ps-0-rows").restore(
        read_shard(directory, record), step, directory
    )
    return part


def equal(one: TablePart, other: TablePart) -> None:
    """Both have the same rows, and go on in the same way."""
    np.testing.assert_array_equal(one.read([IDS])[0], other.read([IDS])[0])
    assert one.describe()[0]["rows"] == other.describe()[0]["rows"]


def test_a_snapshot_on_a_base_is_what_the_rows_were_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_part, "FEWEST", 100)
    monkeypatch.setattr(table_part, "_PAGE", 64)
    part = new_part()
    base = TableBase(part, tmp_path / "base", "ps-0-rows")
    made = []
    for number in range(8):
        train(part, range(10 * number + 1, 10 * number + 11))
        directory = tmp_path / f"step-{number}"
        made.append((directory, snapshot(base, directory), part.copies()))
    assert [len(list(directory.glob("ps-0-rows*"))) > 0 for directory, *_ in made] == [False] + [True] * 7
    assert made[-1][1].nbytes < sum(array.nbytes for array in made[-1][2].values()), "it has all rows"
    # Whatever base there is by now, each snapshot still has the files of its own.
    for number, (directory, record, copies) in enumerate(made):
        step = 10 * number + 10
        again, copy = restored(directory, record, step), new_part()
        copy.restore(copies, step)
        equal(again, copy)
        for each in (again, copy):
            train(each, range(step + 1, step + 4))
        equal(again, copy)


def test_a_snapshot_after_rows_were_replaced_stands_on_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_part, "FEWEST", 1)
    part = new_part()
    base = TableBase(part, tmp_path / "base", "ps-0-rows")
    train(part, range(1, 11))
    kept = part.copies()
    snapshot(base, tmp_path / "before")
    part.clear()
    base.forget()
    part.restore(kept, 10)
    record = snapshot(base, tmp_path / "after")
    equal(part, restored(tmp_path / "after", record, 10))


def test_what_all_rows_share_is_replaced_by_something_like_it_alone() -> None:
    part = new_part()
    count = RowScalar(0, 0, np.array(7, np.int32))  # Adam's, of its updates
    part.prepare_rows(NewRows(scalars=[count]), 0, 1)(False)
    assert part.copies()["tables/users/scalar0"] == 7
    for wrong in (
        RowScalar(1, 0, count.value),
        RowScalar(-1, 0, count.value),
        RowScalar(0, 5, count.value),
        RowScalar(0, 0, np.array([7], np.int32)),
        RowScalar(0, 0, np.array(7.0, np.float32)),
    ):
        with pytest.raises(ProtocolError, match="there is none like it"):
            part.prepare_rows(NewRows(scalars=[wrong]), 0, 1)


def test_rows_that_are_replaced_go_on_with_the_step_and_what_they_shared() -> None:
    part, other = new_part(), new_part()
    train(part, range(1, 11))
    train(other, range(1, 3))
    count = part.copies()["tables/users/scalar0"]
    assert other.copies()["tables/users/scalar0"] != count
    part._take(list(other._stores), goes_on=True)
    equal(part, other)
    assert part.step == 10
    assert part.copies()["tables/users/scalar0"] == count


@pytest.mark.parametrize("has_rows", [True, False])
def test_a_server_that_is_given_rows_as_training_goes_on_has_no_base_any_more(
    tmp_path: Path, has_rows: bool
) -> None:
    config = SimpleNamespace(
        nbytes=0, name="model", server=0, participants=(0,), snapshot_dir=str(tmp_path), snapshot_secs=600.0
    )
    part = ModelPart(cast(Any, config), cast(Any, None), jax.devices()[0], cast(Any, None))
    part.store = cast(Any, SimpleNamespace(take=lambda token, version, is_anew: has_rows))
    part._base = TableBase(new_part(), tmp_path / "base", "ps-0-rows")
    part._base._base = known = 5, ()
    part.obey(protocol.TAKE, {"token": "rows", "step": 7, "is_anew": False}, 1.0)
    assert (part._base._base == known) is not has_rows
    part.close()
