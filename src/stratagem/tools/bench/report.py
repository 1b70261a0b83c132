"""What was measured, as a table, and as plain values for JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Column, Table

from stratagem.tools.bench.contenders import ONE_DEVICE
from stratagem.tools.bench.results import Result

_NONE = "–"
_NUMBERS = ("steps/s", "examples/s", "efficiency")
HEADS = ("contender", *_NUMBERS, "loss", "staleness")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """A row of text for each contender, under `HEADS`."""
    one = next((each for each in results if each.contender.strategy == ONE_DEVICE and each.is_whole), None)
    return [_row(result, one) for result in results]


def table(results: Sequence[Result], seconds: float) -> Table:
    """One row for each contender; the fastest is bold.

    Args:
        results: What was measured.
        seconds: How long each trained.
    """
    made = Table(
        Column("contender", no_wrap=True),
        *(Column(name, justify="right", no_wrap=True) for name in _NUMBERS),
        Column(f"loss after {seconds:g} s", justify="right"),
        Column("staleness", justify="right"),
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    fastest = max((each.examples_per_second for each in results if each.is_whole), default=math.nan)
    for result, row in zip(results, rows(results), strict=True):
        is_best = result.is_whole and result.examples_per_second == fastest
        made.add_row(*row, style="bold" if is_best else None)
    return made


def plain(
    results: Sequence[Result], asked: dict[str, Any], machine: dict[str, Any], advice: Sequence[str]
) -> dict[str, Any]:
    """Everything for machines.

    Args:
        results: What was measured.
        asked: The options.
        machine: Where.
        advice: What follows from it.
    """
    one = next((each for each in results if each.contender.strategy == ONE_DEVICE and each.is_whole), None)
    return {
        "asked": asked,
        "machine": machine,
        "contenders": [_finite(_plain_result(result, one)) for result in results],
        "advice": list(advice),
    }


def _row(result: Result, one: Result | None) -> tuple[str, ...]:
    if not result.is_whole:
        return (result.contender.name, "failed", *([_NONE] * (len(HEADS) - 2)))
    stale = result.staleness
    return (
        result.contender.name,
        f"{result.steps_per_second:,.0f}"
        if result.steps_per_second >= 10
        else f"{result.steps_per_second:.1f}",
        f"{result.examples_per_second:,.0f}",
        _NONE if one is None else f"{result.efficiency(one):.0%}",
        f"{result.loss:.3f}",
        _NONE if stale is None else f"{stale:.1f} (≤ {result.most_staleness})",
    )


def _plain_result(result: Result, one: Result | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": result.contender.name,
        "strategy": result.contender.strategy,
        "workers": result.contender.workers,
        "devices": result.contender.devices,
        "failure": result.failure,
    }
    if result.is_whole:
        said |= {
            "steps_per_second": result.steps_per_second,
            "examples_per_second": result.examples_per_second,
            "efficiency": None if one is None else result.efficiency(one),
            "loss": result.loss,
            "staleness": result.staleness,
            "most_staleness": result.most_staleness,
        }
    return {**said, "rounds": [asdict(each) for each in result.rounds]}


def _finite(value: Any) -> Any:
    """The same with `None` for a loss that is none any more: JSON has no word for it."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
