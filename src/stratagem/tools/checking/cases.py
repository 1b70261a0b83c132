"""What `stratagem check` tries on a machine: the strategies that its devices can tell apart. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

ALONE = "OneDevice"
MIRRORED, MIRRORED_SHARDED = "Mirrored", "Mirrored, shard_state"
CENTRAL = "CentralStorage"
TPU = "TPU"
TOGETHER = "MultiWorkerMirrored"
BY_XLA, BY_XLA_SHARDED = "MultiWorkerMirrored by XLA", "MultiWorkerMirrored by XLA, shard_state"


@dataclass(frozen=True)
class Case:
    """A strategy on some devices of this machine.

    Attributes:
        name: Which strategy.
        devices: How many devices each process has.
        workers: How many processes there are.
    """

    name: str
    devices: int = 1
    workers: int = 1


def cases(devices: int, are_tpus: bool) -> Iterator[Case]:
    """The cases for a machine with so many devices."""
    yield Case(ALONE)
    if devices == 1:
        return
    for name in (MIRRORED, MIRRORED_SHARDED, CENTRAL):
        yield Case(name, devices)
    if are_tpus:  # which one process has all of
        yield Case(TPU, devices)
        return
    for name in (TOGETHER, BY_XLA, BY_XLA_SHARDED):
        yield Case(name, devices // 2, workers=2)
