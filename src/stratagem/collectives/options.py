"""How a group of workers goes about it: how much at once, and how long it waits for whom."""

import math
from dataclasses import dataclass

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class GroupOptions:
    """What all workers of a group agree on.

    Attributes:
        bytes_per_pack: Arrays go round in packs of about so many bytes; 0 means in one pack.
        timeout: Seconds without a sign of life after which a worker is lost. One that dies is missed at once.
        patience: Seconds that a worker which is alive may keep the others waiting, for its compiler or its
            disk; the log names it meanwhile.
        forming: Seconds for all workers to start and meet.

    Example:
        >>> GroupOptions(timeout=5).timeout
        5
    """

    bytes_per_pack: int = 0
    timeout: float = 30.0
    patience: float = 600.0
    forming: float = 300.0

    def __post_init__(self) -> None:
        size = self.bytes_per_pack
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise StrategyError(f"bytes_per_pack is {size!r}; give a number of bytes, or 0 for one pack")
        for name in ("timeout", "patience", "forming"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise StrategyError(f"{name} is {seconds!r}; give a number of seconds greater than 0")
        if math.isinf(self.timeout):
            raise StrategyError("timeout is infinite; a worker that froze would then never be missed")
