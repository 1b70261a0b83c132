"""What `stratagem bench` is asked for: numbers as a user types them, and what a contender's processes are told."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from stratagem.errors import LaunchError


@dataclass(frozen=True)
class JobSettings:
    """What every worker of a contender is told.

    Attributes:
        strategy: The contender's strategy, by its name among `contenders.KINDS`.
        layers: The width of each layer, from the inputs to the classes.
        batch: Examples of each replica in each step.
        seconds: How long to train.
        pause: Seconds that the last of several workers waits before each of its steps: it stands for a slow machine.
        directory: Where workers meet and leave their reports.
    """

    strategy: str
    layers: tuple[int, ...]
    batch: int
    seconds: float
    pause: float
    directory: str

    def to_json(self) -> str:
        """The settings as one argument of a command."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        told = json.loads(text)
        return cls(**{**told, "layers": tuple(told["layers"])})


def whole_numbers(option: str, text: str, most: int | None = None, why: str = "") -> tuple[int, ...]:
    """A list of rising whole numbers, such as `1,2,4`.

    Args:
        option: Where it was given, for the error.
        text: What was given.
        most: The largest that may be.
        why: The reason of that.

    Raises:
        LaunchError: It is no such list.
    """
    numbers = _numbers(option, text, "1,2,4")
    if list(numbers) != sorted(set(numbers)):
        raise LaunchError(f"{option} {text}: give each number once, in rising order, such as 1,2,4")
    if most is not None and numbers[-1] > most:
        raise LaunchError(f"{option} {text}: {numbers[-1]} is too many, since {why}; give at most {most}")
    return numbers


def layer_sizes(text: str) -> tuple[int, ...]:
    """The widths of a model's layers, such as `784,500,10`.

    Raises:
        LaunchError: It is no such list.
    """
    sizes = _numbers("--layers", text, "784,500,10")
    if len(sizes) < 2 or sizes[-1] < 2:
        raise LaunchError(
            f"--layers {text}: give the inputs, any hidden layers, and at least 2 classes, such as 784,500,10"
        )
    return sizes


def _numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not word.isdecimal() or int(word) < 1:
            raise LaunchError(
                f"{option} {text}: {word!r} is not a whole number of at least 1; give a list such as {example}"
            )
    return tuple(map(int, words))
