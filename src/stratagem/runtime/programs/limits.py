"""How large a shipped program may be: in bytes, in operations, and in the memory that it takes."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stratagem.errors import LimitExceeded
from stratagem.runtime.memory import physical_memory

MIB = 1 << 20


def available_memory() -> int:
    """Bytes of memory of this machine, or of the container that this process is in, if that is less."""
    physical = physical_memory()
    with suppress(OSError, ValueError):  # no control groups here, or the word "max"
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical


@dataclass(frozen=True)
class ProgramLimits:
    """Bounds on a program; what exceeds one of them is refused.

    Memory is bounded twice. Before compilation, `unfused_bytes` bounds an estimate that counts each
    intermediate result as if nothing were fused; XLA fuses much of it away, so the default is generous and
    is there to stop the absurd. After compilation and before the first call, `memory_bytes` bounds what
    XLA says that the program takes.

    Example:
        >>> ProgramLimits(operations=1000).operations
        1000

    Attributes:
        artifact_bytes: Size of the artifact.
        constant_bytes: Sum of the constants written out in it; those made of one repeated value do not count.
        operations: Operations, with each call counted as often as it happens.
        inputs: Number of inputs.
        outputs: Number of outputs.
        unfused_bytes: Estimated peak memory without fusion.
        memory_bytes: Peak memory of the compiled program: arguments, results and temporaries.
    """

    artifact_bytes: int = 64 * MIB
    constant_bytes: int = 64 * MIB
    operations: int = 200_000
    inputs: int = 16_384
    outputs: int = 16_384
    unfused_bytes: int = field(default_factory=lambda: 8 * available_memory())
    memory_bytes: int = field(default_factory=available_memory)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise LimitExceeded(f"ProgramLimits({name}={value!r}): a limit is a whole number, 0 or more")
