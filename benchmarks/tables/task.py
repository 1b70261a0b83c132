"""What the processes of a contender over tables are to do."""

import json
from dataclasses import dataclass
from typing import Self

from benchmarks.parameter_servers.task import Placed
from benchmarks.tables.work import TableWork


@dataclass(frozen=True)
class TableTask(Placed):
    """What a contender's processes are to do.

    Attributes:
        work: What to train.
    """

    work: TableWork

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The task that `to_json` wrote."""
        fields = json.loads(text)
        return cls(TableWork.from_fields(fields["work"]), threads=fields["threads"])
