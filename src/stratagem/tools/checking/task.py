"""A task that tries one strategy, and leaves what it found.

python -m stratagem.tools.checking.task NAME SECONDS FILE
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import jax

from stratagem.devices import visible_gpus
from stratagem.environment import current
from stratagem.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
)
from stratagem.tools.checking.cases import (
    ALONE,
    BY_XLA,
    BY_XLA_SHARDED,
    CENTRAL,
    MIRRORED,
    MIRRORED_SHARDED,
    TOGETHER,
    TPU,
)
from stratagem.tools.checking.trial import Found, tried

_BY_NAME: dict[str, Callable[[], Strategy]] = {
    ALONE: lambda: OneDeviceStrategy(f"/{jax.default_backend()}:0"),
    MIRRORED: MirroredStrategy,
    MIRRORED_SHARDED: lambda: MirroredStrategy(shard_state=True),
    CENTRAL: CentralStorageStrategy,
    TPU: TPUStrategy,
    TOGETHER: MultiWorkerMirroredStrategy,
    BY_XLA: lambda: MultiWorkerMirroredStrategy(communication=_xlas()),
    BY_XLA_SHARDED: lambda: MultiWorkerMirroredStrategy(communication=_xlas(), shard_state=True),
}


def _xlas() -> Literal["nccl", "ring"]:
    return "nccl" if visible_gpus(current()) else "ring"


def try_case(name: str, seconds: float) -> tuple[bool, Found]:
    """Try the strategy of that name in this process; whether this is the chief, and what it found."""
    with _BY_NAME[name]() as strategy:
        return strategy.is_chief, tried(strategy, seconds)


if __name__ == "__main__":
    is_chief, found = try_case(sys.argv[1], float(sys.argv[2]))
    if is_chief:
        Path(sys.argv[3]).write_text(json.dumps(asdict(found)))
