"""Which strategy fits, by what was measured: in step or not, or no distribution at all. Pure."""

from collections.abc import Sequence

from stratagem.tools.bench.contenders import ONE_DEVICE
from stratagem.tools.bench.results import Result

GAIN = 1.1
"""Several must be this much faster than one device to be worth it."""
LEAD = 1.15
"""Not being in step must be this much faster to be worth stale gradients."""
EVEN = 0.75
"""Workers are uneven if the slowest takes fewer steps than this for each of the fastest's."""
CLOSE = 0.9
"""Bounded staleness is the better choice if it is this close to async."""


def advise(results: Sequence[Result], cores: int) -> list[str]:
    """A few sentences, the first of which says what to use.

    Args:
        results: All contenders', one device's first.
        cores: How many cores this machine has.
    """
    whole = [result for result in results if result.is_whole]
    one = next((result for result in whole if result.contender.strategy == ONE_DEVICE), None)
    several = [result for result in whole if result.contender.replicas > 1]
    if one is None:
        return ["No advice: one device, against which all are measured, did not finish."]
    if not several:
        return ["No advice: nothing with several workers or devices was measured; add --workers 1,2."]
    workers = [result for result in several if result.contender.workers > 1]
    best, said = _choice(several, workers)
    fastest = _fastest(several)
    if _gain(fastest, one) < GAIN:
        return [_nothing_gained(one, fastest, cores), *_if_elsewhere(best, workers)]
    if _gain(best, one) < GAIN:  # only those of one process gain, who have no slow worker among them
        best, said = fastest, "Several processes gain nothing here."
        return [_use(best, one, said), *_if_elsewhere(_fastest(workers), workers)]
    return [_use(best, one, said)]


def _use(best: Result, one: Result, said: str) -> str:
    gain = _gain(best, one)
    return (
        f"Use {best.contender.kind.code} ({best.contender.name}): {gain:.1f} times one device's speed. {said}"
    )


def _gain(result: Result, one: Result) -> float:
    return result.examples_per_second / one.examples_per_second


def _choice(several: Sequence[Result], workers: Sequence[Result]) -> tuple[Result, str]:
    """The contender to use, and why it and not the others."""
    in_step = [result for result in several if result.contender.kind.in_step]
    at_own_pace = [result for result in several if not result.contender.kind.in_step]
    uneven = _unevenness(workers)
    # Devices of one process have no slow worker among them: where one was found, they are no alternative to it.
    rivals = [result for result in in_step if result in workers] if uneven is not None else in_step
    if not rivals and not at_own_pace:
        rivals = in_step
    if not at_own_pace:
        best = _fastest(rivals)
        return best, "It was compared with none that lets workers go at their own pace."
    if not rivals:
        return _fastest(at_own_pace), "It was compared with none that keeps workers in step."
    together, apart = _fastest(rivals), _fastest(at_own_pace)
    lead = apart.examples_per_second / together.examples_per_second
    if lead < LEAD:
        return together, (
            f"The workers are balanced and the model is small enough: going in step costs little "
            f"({apart.contender.name} has {lead:.1f} times its speed), and gives what one device would."
        )
    cause = (
        f"the workers are uneven (the slowest takes {uneven:.0%} of the fastest's steps)"
        if uneven is not None
        else "the exchange takes long beside the computing"
    )
    best = _bounded_if_close(apart, at_own_pace)
    stale = (
        f", at the price of gradients {best.staleness:.1f} steps stale on average" if best.staleness else ""
    )
    return best, (
        f"Since {cause}, nobody should wait for the others: not to be in step brings {lead:.1f} times the speed of "
        f"{together.contender.name}{stale}.{_by_loss(best, together)}"
    )


def _bounded_if_close(apart: Result, at_own_pace: Sequence[Result]) -> Result:
    """The same with a bound on staleness, where the bound costs next to nothing."""
    for result in at_own_pace:
        is_rival = (
            result.contender.strategy == "bounded" and result.contender.replicas == apart.contender.replicas
        )
        if is_rival and result.examples_per_second >= CLOSE * apart.examples_per_second:
            return result
    return apart


def _by_loss(best: Result, together: Result) -> str:
    if best.loss <= together.loss:
        return f" Its loss after the same time is lower, too ({best.loss:.3f} against {together.loss:.3f})."
    return (
        f" Mind that its loss after the same time is higher ({best.loss:.3f} against {together.loss:.3f}): "
        "try a smaller learning rate."
    )


def _nothing_gained(one: Result, fastest: Result, cores: int) -> str:
    return (
        f"Use {one.contender.kind.code}: nothing is gained here by several processes or devices. The fastest of them, "
        f"{fastest.contender.name}, trains {fastest.examples_per_second:,.0f} examples/s, one device "
        f"{one.examples_per_second:,.0f}, which already computes on all {cores} cores of this machine."
    )


def _if_elsewhere(best: Result, workers: Sequence[Result]) -> list[str]:
    if best not in workers:
        return []
    return [f"Among several processes, {best.contender.name} does best ({best.contender.kind.code})."]


def _unevenness(workers: Sequence[Result]) -> float | None:
    """How slow the slowest worker is, where each goes at its own pace and they differ; else None."""
    found = [result.evenness for result in workers if result.contender.strategy == "async"]
    found = found or [result.evenness for result in workers if not result.contender.kind.in_step]
    return min(found) if found and min(found) < EVEN else None


def _fastest(results: Sequence[Result]) -> Result:
    return max(results, key=lambda result: result.examples_per_second)
