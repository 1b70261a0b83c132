"""The task of the processes of a contender over tables."""

import json
from dataclasses import dataclass
from typing import Self

from benchmarks.parameter_servers.task import Placed
from benchmarks.tables.work import TableWork


@dataclass(frozen=True)
class TableTask(Placed):
    """The task of a contender's processes.

    Attributes:
        work: The work.
    """

    work: TableWork

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a task from the text of `to_json`."""
        fields = json.loads(text)
        return cls(TableWork.from_fields(fields["work"]), threads=fields["threads"])
