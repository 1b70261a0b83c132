"""Clusters and placements as Markdown tables, which TensorBoard shows among its texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from stratagem.cluster import ClusterSpec
from stratagem.errors import DataError


class HasDevice(Protocol):
    """A variable that knows where it is."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def device(self) -> object:
        """Where it is."""
        ...


def cluster_table(cluster: ClusterSpec) -> str:
    """Every task and its address.

    Example:
        >>> print(cluster_table(ClusterSpec({"worker": ["a:2222"]})))
        | task | address |
        | --- | --- |
        | /job:worker/task:0 | a:2222 |
    """
    return _table(
        ("task", "address"),
        (
            (f"/job:{job}/task:{index}", cluster.task_address(job, index))
            for job in cluster.jobs
            for index in cluster.task_indices(job)
        ),
    )


def placement_table(placement: Mapping[str, Any] | Iterable[HasDevice]) -> str:
    """Every variable and the device that holds it.

    Example:
        >>> print(placement_table({"w": "/job:ps/task:0/device:CPU:0"}))
        | variable | device |
        | --- | --- |
        | w | /job:ps/task:0/device:CPU:0 |
    """
    rows = (
        list(placement.items())
        if isinstance(placement, Mapping)
        else [(each.name, each.device) for each in placement]
    )
    for name, device in rows:
        if hasattr(device, "shape"):
            raise DataError(
                f"{name} is an array, where its device was expected; strategy.placement(state) tells the device of each "
                "parameter"
            )
    return _table(("variable", "device"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in line)} |" for line in lines)
