"""The contenders of `stratagem bench`: each strategy at each number of workers, and the settings of their processes. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from stratagem.errors import LaunchError

STALENESS_BOUND = 4
"""Pushes that a worker may be ahead of the slowest under bounded staleness."""


@dataclass(frozen=True)
class Kind:
    """A strategy as a contender."""

    label: str  # the name in tables
    code: str  # the expression in a script
    in_step: bool  # whether all replicas make each update together
    servers: int  # number of parameter servers
    replicas_are: str  # `devices` of one process, or `workers`, a process each


ONE_DEVICE = "one-device"
KINDS = {
    ONE_DEVICE: Kind("one device", "sg.OneDeviceStrategy()", True, 0, "devices"),
    "mirrored": Kind("mirrored", "sg.MirroredStrategy()", True, 0, "devices"),
    "multi-worker": Kind("multi-worker mirrored", "sg.MultiWorkerMirroredStrategy()", True, 0, "workers"),
    "sync": Kind("servers, sync", "sg.ParameterServerStrategy(update=sg.Sync())", True, 1, "workers"),
    "async": Kind("servers, async", "sg.ParameterServerStrategy(update=sg.Async())", False, 1, "workers"),
    "bounded": Kind(
        f"servers, bounded {STALENESS_BOUND}",
        f"sg.ParameterServerStrategy(update=sg.BoundedStaleness({STALENESS_BOUND}))",
        False,
        1,
        "workers",
    ),
}
"""By their names in `--strategies`."""
CHOICES = tuple(name for name in KINDS if name != ONE_DEVICE)


@dataclass(frozen=True)
class Contender:
    """A strategy at a number of replicas."""

    strategy: str  # its name in `KINDS`
    replicas: int = 1  # number of devices or workers that train

    @property
    def kind(self) -> Kind:
        """The strategy."""
        return KINDS[self.strategy]

    @property
    def workers(self) -> int:
        """Number of processes that train."""
        return self.replicas if self.kind.replicas_are == "workers" else 1

    @property
    def devices(self) -> int:
        """Number of devices of each process."""
        return 1 if self.kind.replicas_are == "workers" else self.replicas

    @property
    def name(self) -> str:
        """The name in tables.

        Example:
            >>> Contender("async", 2).name
            'servers, async, 2 workers'
        """
        if self.strategy == ONE_DEVICE:
            return self.kind.label
        unit = self.kind.replicas_are
        return f"{self.kind.label}, {self.replicas} {unit if self.replicas > 1 else unit.removesuffix('s')}"


def line_up(strategies: Iterable[str], workers: Sequence[int], devices: Sequence[int]) -> list[Contender]:
    """Return all contenders, beginning with one device, which the others are compared with; `strategies` are of `CHOICES`."""
    contenders = [Contender(ONE_DEVICE)]
    for name in dict.fromkeys(strategies):
        if name not in CHOICES:
            raise LaunchError(
                f"--strategies: there is no {name!r}; choose among {', '.join(CHOICES)} "
                "(one device always takes part, to compare with)"
            )
        counts = workers if KINDS[name].replicas_are == "workers" else devices
        contenders += [Contender(name, count) for count in counts]
    return contenders


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of every worker of a contender."""

    strategy: str  # the contender's strategy, by its name in `KINDS`
    layers: tuple[int, ...]  # the width of each layer, from the inputs to the classes
    batch: int  # examples of each replica in each step
    seconds: float  # how long to train
    pause: float  # seconds that the last of several workers waits before each of its steps, to stand for a slow machine
    directory: str  # where workers signal that they are ready, and write their reports

    def to_json(self) -> str:
        """Return the settings as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the settings from the text of `to_json`."""
        values = json.loads(text)
        return cls(**{**values, "layers": tuple(values["layers"])})
