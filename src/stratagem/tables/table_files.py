"""Rows of tables in shard files: what they are called there, how they are written, and read again by whoever has them."""

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
"""What the names of arrays of tables begin with."""


def label(names: Iterable[str]) -> str:
    """What a stack of these tables is called."""
    return PREFIX + ",".join(names)


def row_form(names: Sequence[str], spec: RowSpec) -> dict[str, StoredArray]:
    """What there is of a stack, for a checkpoint of one model to be told from that of another."""
    values = StoredArray((spec.bound or 0, spec.dim), spec.dtype)
    slots = {f"{label(names)}, slot {place}": StoredArray(*slot) for place, slot in enumerate(spec.slots)}
    return {label(names): values, **slots}


@dataclass(frozen=True)
class TableFiles:
    """The files of a checkpoint that have rows of tables in them.

    Attributes:
        directory: Where they are.
        step: The step that they are of.
        records: What they hold.
    """

    directory: Path
    step: int
    records: tuple[ShardRecord, ...]

    @classmethod
    def among(cls, directory: Path, step: int, records: Iterable[ShardRecord]) -> "TableFiles":
        """Those of a checkpoint."""
        have_rows = (each for each in records if any(name.startswith(PREFIX) for name in each.arrays))
        return cls(directory, step, tuple(have_rows))

    def to_fields(self) -> dict[str, Any]:
        """The same in plain values."""
        return {
            "directory": str(self.directory),
            "step": self.step,
            "records": [record.to_dict() for record in self.records],
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "TableFiles":
        """What `to_fields` gave."""
        records = tuple(ShardRecord.from_dict(each) for each in fields["records"])
        return cls(Path(fields["directory"]), fields["step"], records)

    def read(self, stores: Mapping[str, RowStore], is_own: Callable[[Array], Array] | None = None) -> None:
        """Add their rows to stores that have none, one file at a time.

        Args:
            stores: By the labels of their stacks.
            is_own: Which ids are wanted; all by default.

        Raises:
            KeepError: A file is missing or damaged, or has other tables.
        """
        for record in self.records:
            names = [name for name in record.arrays if name.startswith(PREFIX)]
            restore(stores, read_shard(self.directory, record, names), self.step, is_own)


@dataclass(frozen=True)
class NewRows:
    """What is new of the rows of a model's tables.

    Attributes:
        files: Where the rows are; `None` if they stay.
        scalars: What all rows of stacks are to share of the optimizer's state.
    """

    files: TableFiles | None = None
    scalars: Sequence[RowScalar] = ()

    def __bool__(self) -> bool:
        return self.files is not None or bool(self.scalars)

    def to_fields(self) -> tuple[dict[str, Any], list[Array]]:
        """The same in plain values and arrays."""
        files = None if self.files is None else self.files.to_fields()
        places = [[scalar.stack, scalar.place] for scalar in self.scalars]
        return {"files": files, "scalars": places}, [np.asarray(scalar.value) for scalar in self.scalars]

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], arrays: Sequence[Array]) -> "NewRows":
        """What `to_fields` gave, with arrays of its own."""
        pairs = zip(fields["scalars"], arrays, strict=True)
        files = None if fields["files"] is None else TableFiles.from_fields(fields["files"])
        return cls(files, [RowScalar(stack, place, np.array(value)) for (stack, place), value in pairs])


NO_ROWS = NewRows()


def copies(stores: Mapping[str, RowStore], *which: int) -> dict[str, Array]:
    """Copies of rows of stores, by the names that they have in a file.

    Args:
        stores: By the labels of their stacks.
        *which: Which rows, as `RowStore.copies` has it; all by default.
    """
    return {
        f"{name}/{column}": array
        for name, store in stores.items()
        for column, array in store.copies(*which).items()
    }


def restore(
    stores: Mapping[str, RowStore],
    arrays: Mapping[str, Array],
    step: int,
    is_own: Callable[[Array], Array] | None = None,
) -> None:
    """Add what `copies` gave, perhaps among other things, to stores.

    Raises:
        KeepError: They are of other tables.
    """
    for name, store in stores.items():
        start = f"{name}/"
        own = {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}
        if "ids" not in own:
            raise KeepError(
                f"there are no rows of {name} among {sorted(arrays)[:5]}: these are of other tables"
            )
        store.restore(own, step, is_own)
