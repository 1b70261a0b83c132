"""How the time of a step varies: from step to step, and from worker to worker."""

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stratagem.errors import LaunchError

Floats = NDArray[np.float64]
FORMS = (
    "none, lognormal:0.2, exponential, exponential:0.3, pareto:3, slow:0.1x3, or several of them joined by +"
)


class Variation(Protocol):
    """One reason for steps to take longer than others. The mean over many steps of a worker is its factor."""

    def factors(self, workers: int) -> Floats:
        """How slow each worker is for good: 1 for those that are as the others."""
        ...

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """How slow single steps are: 1 on average."""
        ...


class _PerStep:
    """Varies from step to step, alike for all workers."""

    def factors(self, workers: int) -> Floats:
        """See `Variation`."""
        return np.ones(workers)


@dataclass(frozen=True)
class Lognormal(_PerStep):
    """Logarithms of times are normal: a noisy machine.

    Attributes:
        sigma: Their standard deviation; about that of the times, relative to their mean.
    """

    sigma: float

    def __post_init__(self) -> None:
        _check(0 <= self.sigma <= 5, f"lognormal:{self.sigma:g}", "0 to 5")

    def __str__(self) -> str:
        return f"lognormal:{self.sigma:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """See `Variation`."""
        drawn: Floats = random.lognormal(-(self.sigma**2) / 2, self.sigma, shape)
        return drawn


@dataclass(frozen=True)
class Exponential(_PerStep):
    """A part of each step takes a time that has no memory, as a wait for a shared resource does.

    Attributes:
        share: That part.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"exponential:{self.share:g}", "0 to 1")

    def __str__(self) -> str:
        return f"exponential:{self.share:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """See `Variation`."""
        drawn: Floats = random.exponential(self.share, shape)
        return 1 - self.share + drawn


@dataclass(frozen=True)
class Pareto(_PerStep):
    """Heavy tail: most steps are a little quicker than the mean, few are very much slower.

    Attributes:
        shape: The tail's exponent: the smaller, the heavier.
    """

    shape: float

    def __post_init__(self) -> None:
        _check(
            1 < self.shape <= 1000,
            f"pareto:{self.shape:g}",
            "more than 1 (the mean is infinite otherwise) to 1000",
        )

    def __str__(self) -> str:
        return f"pareto:{self.shape:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """See `Variation`."""
        drawn: Floats = random.pareto(self.shape, shape)
        return (self.shape - 1) / self.shape * (1 + drawn)


@dataclass(frozen=True)
class Slow:
    """Some workers are slower than the others for good.

    Attributes:
        share: Of all workers, to the nearest number of them.
        factor: How many times slower.
    """

    share: float
    factor: float

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"slow:{self.share:g}x{self.factor:g}", "a share of 0 to 1")
        _check(0 < self.factor < math.inf, f"slow:{self.share:g}x{self.factor:g}", "a factor of more than 0")

    def __str__(self) -> str:
        return f"slow:{self.share:g}x{self.factor:g}"

    def factors(self, workers: int) -> Floats:
        """See `Variation`."""
        slow = math.floor(self.share * workers + 0.5)
        return np.where(np.arange(workers) < workers - slow, 1.0, self.factor)

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """See `Variation`."""
        return np.ones(shape)


@dataclass(frozen=True)
class Stragglers:
    """All reasons together; their factors multiply.

    Attributes:
        variations: The reasons.
    """

    variations: tuple[Variation, ...] = ()

    def __str__(self) -> str:
        return "+".join(map(str, self.variations)) or "none"

    def factors(self, workers: int) -> Floats:
        """How slow each worker is for good."""
        result = np.ones(workers)
        for variation in self.variations:
            result = result * variation.factors(workers)
        return result

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """How slow single steps are."""
        result = np.ones(shape)
        for variation in self.variations:
            result = result * variation.draw(random, shape)
        return result

    @classmethod
    def parse(cls, text: str) -> "Stragglers":
        """What a user wrote.

        Example:
            >>> Stragglers.parse("lognormal:0.2+slow:0.1x3")
            Stragglers(variations=(Lognormal(sigma=0.2), Slow(share=0.1, factor=3.0)))

        Raises:
            LaunchError: It is not understood.
        """
        if text.strip() == "none":
            return cls()
        return cls(tuple(_parse_one(word.strip(), text) for word in text.split("+")))


def _parse_one(word: str, text: str) -> Variation:
    kind, _, values = word.partition(":")
    try:
        if kind == "lognormal":
            return Lognormal(float(values))
        if kind == "exponential":
            return Exponential(float(values)) if values else Exponential()
        if kind == "pareto":
            return Pareto(float(values))
        if kind == "slow" and (match := re.fullmatch(r"([^x]+)x([^x]+)", values)):
            return Slow(float(match[1]), float(match[2]))
    except ValueError:
        pass
    raise LaunchError(f"stragglers {text!r}: {word!r} is not understood; give {FORMS}")


def _check(is_good: bool, got: str, allowed: str) -> None:
    if not is_good:
        raise LaunchError(f"stragglers {got!r} cannot be: give {allowed}")
