"""Stragglers: how the time of a step varies from step to step, and from worker to worker."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.errors import LaunchError

Floats = NDArray[np.float64]
FORMS = (
    "none, lognormal:0.2, exponential, exponential:0.3, pareto:3, slow:0.1x3, or several of them joined by +"
)


class Variation(ABC):
    """One reason for some steps to take longer than others. The mean over many steps of a worker is its factor."""

    @abstractmethod
    def factors(self, workers: int) -> Floats:
        """Return how slow each worker is permanently: 1 for an ordinary one."""

    @abstractmethod
    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        """Draw how slow single steps are: 1 on average."""


class _StepVariation(Variation):
    """Variation from step to step, the same for all workers."""

    def factors(self, workers: int) -> Floats:
        return np.ones(workers)


@dataclass(frozen=True)
class Lognormal(_StepVariation):
    """Times whose logarithms are normally distributed: a noisy machine."""

    sigma: float  # standard deviation of the logarithms; about that of the times, relative to their mean

    def __post_init__(self) -> None:
        _check(0 <= self.sigma <= 5, f"lognormal:{self.sigma:g}", "0 to 5")

    def __str__(self) -> str:
        return f"lognormal:{self.sigma:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        times: Floats = random.lognormal(-(self.sigma**2) / 2, self.sigma, shape)
        return times


@dataclass(frozen=True)
class Exponential(_StepVariation):
    """Times of which a share is exponentially distributed, as the wait for a shared resource is."""

    share: float = 1.0  # that share

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"exponential:{self.share:g}", "0 to 1")

    def __str__(self) -> str:
        return f"exponential:{self.share:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        times: Floats = random.exponential(self.share, shape)
        return 1 - self.share + times


@dataclass(frozen=True)
class Pareto(_StepVariation):
    """Times with a heavy tail: most steps are a little quicker than the mean, a few are very much slower."""

    shape: float  # the exponent of the tail: the smaller, the heavier

    def __post_init__(self) -> None:
        _check(
            1 < self.shape <= 1000,
            f"pareto:{self.shape:g}",
            "more than 1 (the mean is infinite otherwise) to 1000",
        )

    def __str__(self) -> str:
        return f"pareto:{self.shape:g}"

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        times: Floats = random.pareto(self.shape, shape)
        return (self.shape - 1) / self.shape * (1 + times)


@dataclass(frozen=True)
class Slow(Variation):
    """Some workers are permanently slower than the others."""

    share: float  # their share of all workers, rounded to a whole number of workers
    factor: float  # how many times slower they are

    def __post_init__(self) -> None:
        _check(0 <= self.share <= 1, f"slow:{self.share:g}x{self.factor:g}", "a share of 0 to 1")
        _check(0 < self.factor < math.inf, f"slow:{self.share:g}x{self.factor:g}", "a factor of more than 0")

    def __str__(self) -> str:
        return f"slow:{self.share:g}x{self.factor:g}"

    def factors(self, workers: int) -> Floats:
        slow = math.floor(self.share * workers + 0.5)
        return np.where(np.arange(workers) < workers - slow, 1.0, self.factor)

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        return np.ones(shape)


@dataclass(frozen=True)
class Stragglers(Variation):
    """All variations together; their factors multiply."""

    variations: tuple[Variation, ...] = ()

    def __str__(self) -> str:
        return "+".join(map(str, self.variations)) or "none"

    def factors(self, workers: int) -> Floats:
        result = np.ones(workers)
        for variation in self.variations:
            result = result * variation.factors(workers)
        return result

    def draw(self, random: np.random.Generator, shape: Any) -> Floats:
        result = np.ones(shape)
        for variation in self.variations:
            result = result * variation.draw(random, shape)
        return result

    @classmethod
    def parse(cls, text: str) -> "Stragglers":
        """Parse the form in which users write stragglers.

        Example:
            >>> Stragglers.parse("lognormal:0.2+slow:0.1x3")
            Stragglers(variations=(Lognormal(sigma=0.2), Slow(share=0.1, factor=3.0)))
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


def _check(is_allowed: bool, value: str, allowed: str) -> None:
    if not is_allowed:
        raise LaunchError(f"stragglers {value!r} are not possible: give {allowed}")
