"""Tables whose rows live on parameter servers, as a worker plans and sees them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from stratagem.parameters.client import ServerClient
from stratagem.parameters.row_updates import PlannedRows, row_updates
from stratagem.runtime.wire.arrays import Array
from stratagem.tables.row_partition import RowPartition
from stratagem.tables.stacks import stack_tables
from stratagem.tables.table import Table, check_tables
from stratagem.tables.table_files import TableFiles


class ServerRows(PlannedRows):
    """The rows of a model's tables, on the servers.

    Args:
        optimizer: The optimizer of tables that have none of their own.
    """

    def __init__(self, tables: Sequence[Table], optimizer: Any) -> None:
        self.stacks = stack_tables(check_tables(tables))
        self.updates = row_updates(self.stacks, optimizer)
        self.client: ServerClient | None = None  # calls the servers, once the model is there
        # Waits for a push that is under way, during which nothing else is asked of the servers.
        self.settle: Callable[[], object] = lambda: None

    @property
    def _connected(self) -> ServerClient:
        if self.client is None:
            raise RuntimeError("the tables have not been laid out")
        return self.client

    @property
    def _settled(self) -> ServerClient:
        self.settle()
        return self._connected

    def copies(self) -> dict[str, Array]:
        """Return nothing: servers write their rows by themselves."""
        return {}

    def restore(self, files: TableFiles) -> None:
        """Do nothing: the chief has the servers read files when it sets all other values, too."""

    def divided(self, ids: Sequence[Array]) -> list[RowPartition]:
        """Divide ids of each stack among the servers."""
        servers = len(self._connected.servers)
        return [RowPartition(own, servers) for own in ids]

    def count(self, stack: int) -> int:
        client = self._settled
        return sum(client.table_page(server, stack, 0, 0).fields["count"] for server in client.servers)

    def read(self, stack: int, ids: Array) -> Array:
        nothing = np.empty(0, np.int64)
        client = self._settled
        partitions = self.divided([ids if number == stack else nothing for number in range(len(self.stacks))])
        answers = client.pull_rows([[each.ids[server] for each in partitions] for server in client.servers])
        return partitions[stack].join([own[stack] for own in answers], len(ids))

    def pages(self, stack: int, size: int) -> Iterator[tuple[Array, Sequence[Array]]]:
        client = self._settled
        for server in client.servers:
            start: int | None = 0
            while start is not None:
                answer = client.table_page(server, stack, start, size)
                start = answer.fields["next"]
                ids, *columns = answer.tensors
                yield ids, columns
