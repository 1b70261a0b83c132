"""Results as if they had been measured."""

from collections.abc import Sequence

from stratagem.tools.bench.contenders import Contender
from stratagem.tools.bench.results import Measurement, Result


def result(
    strategy: str,
    replicas: int,
    speeds: Sequence[float],
    *,
    loss: float = 0.5,
    staleness: float | None = None,
    paces: tuple[float, ...] = (10.0, 10.0),
) -> Result:
    """A contender that trained so many examples per second in each round."""
    rounds = [
        Measurement(
            steps_per_second=speed / 100,
            examples_per_second=speed,
            loss=loss,
            staleness=staleness,
            most_staleness=None if staleness is None else int(2 * staleness) + 1,
            paces=paces,
            curve=((0.1, 2.0), (0.2, loss)),
        )
        for speed in speeds
    ]
    return Result(Contender(strategy, replicas), rounds)


def failed(strategy: str, replicas: int) -> Result:
    """A contender that did not finish."""
    return Result(Contender(strategy, replicas), failure="it ended with exit code 1\nValueError: the cause")
