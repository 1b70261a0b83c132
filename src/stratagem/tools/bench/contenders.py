"""Who takes part in `stratagem bench`: every strategy that is asked for, at every number of workers. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratagem.errors import LaunchError

STALENESS_BOUND = 4
"""How many pushes ahead of the slowest a worker may be under bounded staleness."""


@dataclass(frozen=True)
class Kind:
    """A strategy as a contender.

    Attributes:
        label: As tables say it.
        code: As a script says it.
        in_step: Whether all replicas make each update together.
        servers: How many parameter servers it has.
        replicas_are: What there are several of: `devices` of one process, or `workers`, a process each.
    """

    label: str
    code: str
    in_step: bool
    servers: int
    replicas_are: str


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
"""By the names that `--strategies` takes."""
CHOICES = tuple(name for name in KINDS if name != ONE_DEVICE)


@dataclass(frozen=True)
class Contender:
    """A strategy at a number of replicas.

    Attributes:
        strategy: Its name among `KINDS`.
        replicas: How many devices or workers train.
    """

    strategy: str
    replicas: int = 1

    @property
    def kind(self) -> Kind:
        """The strategy."""
        return KINDS[self.strategy]

    @property
    def workers(self) -> int:
        """How many processes train."""
        return self.replicas if self.kind.replicas_are == "workers" else 1

    @property
    def devices(self) -> int:
        """How many devices each of them trains with."""
        return 1 if self.kind.replicas_are == "workers" else self.replicas

    @property
    def name(self) -> str:
        """As tables say it.

        Example:
            >>> Contender("async", 2).name
            'servers, async, 2 workers'
        """
        if self.strategy == ONE_DEVICE:
            return self.kind.label
        unit = self.kind.replicas_are
        return f"{self.kind.label}, {self.replicas} {unit if self.replicas > 1 else unit.removesuffix('s')}"


def line_up(strategies: Iterable[str], workers: Sequence[int], devices: Sequence[int]) -> list[Contender]:
    """All contenders, one device first: the others are measured against it.

    Args:
        strategies: Names among `CHOICES`.
        workers: Numbers of workers.
        devices: Numbers of devices of one process.

    Raises:
        LaunchError: There is no strategy of such a name.
    """
    found = [Contender(ONE_DEVICE)]
    for name in dict.fromkeys(strategies):
        if name not in CHOICES:
            raise LaunchError(
                f"--strategies: there is no {name!r}; choose among {', '.join(CHOICES)} "
                "(one device always takes part, to compare with)"
            )
        counts = workers if KINDS[name].replicas_are == "workers" else devices
        found += [Contender(name, count) for count in counts]
    return found
