"""The ways to train among which a plan chooses, as a user names them."""

from dataclasses import dataclass
from typing import TypeAlias

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, BoundedStaleness, Sync, UpdateRule

NAMES = ("all-reduce", "sync", "backup", "async", "overlap", "bounded")


@dataclass(frozen=True)
class AllReduce:
    """No servers: all workers keep the variables, and sum their gradients every step."""


Way: TypeAlias = AllReduce | UpdateRule


@dataclass(frozen=True)
class Choice:
    """One way to train, before it is known with how many workers.

    Attributes:
        name: One of `NAMES`.
        backup: With `backup`: how many workers an update does not wait for; or, below 1, what share of them.
        staleness: With `bounded`: how far ahead a worker may be.
    """

    name: str
    backup: float = 0.05
    staleness: int = 4

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise LaunchError(f"there is no rule {self.name!r}: give {', '.join(NAMES)}")
        if self.backup < 0 or (self.backup >= 1 and self.backup != int(self.backup)):
            raise LaunchError(f"{self.backup:g} backup workers: give a whole number, or a share such as 0.05")
        if self.staleness < 0:
            raise LaunchError(f"a staleness of {self.staleness}: give 0 or more")

    @property
    def has_servers(self) -> bool:
        """Whether it takes parameter servers."""
        return self.name != "all-reduce"

    def for_workers(self, workers: int) -> Way | None:
        """The way itself; `None` if there are too few workers for it to differ from another."""
        match self.name:
            case "all-reduce":
                return AllReduce()
            case "sync":
                return Sync(workers, workers)
            case "backup":
                spare = int(self.backup) if self.backup >= 1 else max(1, round(self.backup * workers))
                return Sync(workers - spare, workers) if spare < workers else None
            case "bounded":
                return BoundedStaleness(self.staleness)
            case _:
                return Async(overlap=self.name == "overlap")


def label(way: Way) -> str:
    """What a table calls it."""
    match way:
        case AllReduce():
            return "all-reduce"
        case Sync(wanted, total) if wanted is not None and total is not None and wanted < total:
            return f"backup {total - wanted}"
        case Sync():
            return "sync"
        case BoundedStaleness(steps):
            return f"bounded {steps}"
        case Async(overlap):
            return "overlap" if overlap else "async"
