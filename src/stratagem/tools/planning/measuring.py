"""The figures of this machine, from what a short job with one server and one worker has measured."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stratagem.tools.planning.figures import Figures

_LEAST_PER_BYTE = 1e-13
"""Seconds: below it, a difference of two measurements is noise."""


@dataclass(frozen=True)
class Measured:
    """What the job measured. Times are seconds, lower quartiles of many.

    Attributes:
        model_bytes: The size of the model that it was measured with.
        gradient: A worker's computing of one gradient of a model of that size.
        step: A whole step of the training loop, its push included.
        push: From a push of all gradients to the parameters that come back.
        pull: Parameters alone.
        empty_push: A push of a model of a few bytes.
        empty_pull: A pull of it.
        average_per_byte: Adding one gradient to another.
    """

    model_bytes: float
    gradient: float
    step: float
    push: float
    pull: float
    empty_push: float
    empty_pull: float
    average_per_byte: float

    @property
    def transfer_per_byte(self) -> float:
        """One way: what a pull takes longer for a model than for none."""
        return max(_LEAST_PER_BYTE, (self.pull - self.empty_pull) / self.model_bytes)

    @property
    def update_per_byte(self) -> float:
        """What is left of a push without both ways, and without what a push takes that carries nothing."""
        both_ways = 2 * self.transfer_per_byte * self.model_bytes
        return max(0.0, (self.push - self.empty_push - both_ways) / self.model_bytes)

    def figures(self) -> Figures:
        """All of it as figures to plan with.

        Of a push that carries nothing, half is taken to be the server's own work, and a quarter each way.
        """
        return Figures(
            step_time=self.gradient,
            model_bytes=self.model_bytes,
            bandwidth=1 / self.transfer_per_byte,
            latency=self.empty_push / 4,
            request_time=self.empty_push / 2,
            update_per_byte=self.update_per_byte,
            average_per_byte=self.average_per_byte,
            worker_overhead=max(0.0, self.step - self.gradient - self.push),
        )

    def write(self, path: Path) -> None:
        """Leave it in a file."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> "Measured":
        """What was left in a file."""
        return cls(**json.loads(path.read_text()))
