"""Rows of tables in shard files: their names there, how they are written, and how whoever holds rows reads them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stratagem.errors import KeepError
from stratagem.keep import ShardRecord, StoredArray, read_shard
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_store import RowScalar, RowSpec, RowStore

PREFIX = "tables/"
"""The names of tables' arrays begin with it."""


def stack_label(names: Iterable[str]) -> str:
    """Return the name of the stack of these tables."""
    return PREFIX + ",".join(names)


def row_form(names: Sequence[str], spec: RowSpec) -> dict[str, StoredArray]:
    """Return the arrays of a stack, by which a checkpoint of one model is told from that of another."""
    values = StoredArray((spec.bound or 0, spec.dim), spec.dtype)
    slots = {
        f"{stack_label(names)}, slot {place}": StoredArray(*slot) for place, slot in enumerate(spec.slots)
    }
    return {stack_label(names): values, **slots}


@dataclass(frozen=True)
class TableFiles:
    """The files of a checkpoint that have rows of tables in them.

    Attributes:
        directory: Where they are.
        step: The checkpoint's step.
        records: What they contain.
    """

    directory: Path
    step: int
    records: tuple[ShardRecord, ...]

    @classmethod
    def among(cls, directory: Path, step: int, records: Iterable[ShardRecord]) -> "TableFiles":
        """Return those of a checkpoint's files that have rows."""
        have_rows = (each for each in records if any(name.startswith(PREFIX) for name in each.arrays))
        return cls(directory, step, tuple(have_rows))

    def to_fields(self) -> dict[str, Any]:
        """Return the same in plain values."""
        return {
            "directory": str(self.directory),
            "step": self.step,
            "records": [record.to_dict() for record in self.records],
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "TableFiles":
        """Return the files that `to_fields` described."""
        records = tuple(ShardRecord.from_dict(each) for each in fields["records"])
        return cls(Path(fields["directory"]), fields["step"], records)

    def read(self, stores: Mapping[str, RowStore], is_own: Callable[[Array], Array] | None = None) -> None:
        """Add their rows to empty stores, one file at a time.

        Args:
            stores: By the labels of their stacks.
            is_own: Tells which ids are wanted; all by default.

        Raises:
            KeepError: A file is missing or damaged, or has other tables.
        """
        for record in self.records:
            names = [name for name in record.arrays if name.startswith(PREFIX)]
            restore_rows(stores, read_shard(self.directory, record, names), self.step, is_own)


@dataclass(frozen=True)
class NewRows:
    """Changes to the rows of a model's tables.

    Attributes:
        files: Where the new rows are; `None` if rows stay.
        scalars: New values of the optimizer's state that all rows of a stack share.
    """

    files: TableFiles | None = None
    scalars: Sequence[RowScalar] = ()

    def __bool__(self) -> bool:
        return self.files is not None or bool(self.scalars)

    def to_fields(self) -> tuple[dict[str, Any], list[Array]]:
        """Return the same in plain values and arrays."""
        files = None if self.files is None else self.files.to_fields()
        places = [[scalar.stack, scalar.place] for scalar in self.scalars]
        return {"files": files, "scalars": places}, [np.asarray(scalar.value) for scalar in self.scalars]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], arrays: Sequence[Array]) -> "NewRows":
        """Return the changes that `to_fields` described, with copies of the arrays."""
        pairs = zip(fields["scalars"], arrays, strict=True)
        files = None if fields["files"] is None else TableFiles.from_fields(fields["files"])
        return cls(files, [RowScalar(stack, place, np.array(value)) for (stack, place), value in pairs])


NO_ROWS = NewRows()


def copy_rows(stores: Mapping[str, RowStore], *which: int) -> dict[str, Array]:
    """Return copies of rows of stores, by their names in a file.

    Args:
        stores: By the labels of their stacks.
        *which: Which rows, as the arguments of `RowStore.copies`; all by default.
    """
    return {
        f"{name}/{column}": array
        for name, store in stores.items()
        for column, array in store.copies(*which).items()
    }


def restore_rows(
    stores: Mapping[str, RowStore],
    arrays: Mapping[str, Array],
    step: int,
    is_own: Callable[[Array], Array] | None = None,
) -> None:
    """Add rows that `copy_rows` copied to stores; arrays of other names are ignored.

    Raises:
        KeepError: The rows are of other tables.
    """
    for name, store in stores.items():
        start = f"{name}/"
        own = {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}
        if "ids" not in own:
            raise KeepError(
                f"there are no rows of {name} among {sorted(arrays)[:5]}: these are of other tables"
            )
        store.restore(own, step, is_own)
