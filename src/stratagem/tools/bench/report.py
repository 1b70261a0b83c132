"""The results of `stratagem bench` as a table, as plain values for JSON, and as curves in a PNG file or an HTML page."""

import html
import io
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from stratagem.errors import LaunchError, MissingExtra
from stratagem.tools.bench.contenders import KINDS, ONE_DEVICE
from stratagem.tools.bench.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NONE = "–"
_NUMBERS = ("steps/s", "examples/s", "efficiency")
HEADINGS = ("contender", *_NUMBERS, "loss", "staleness")
KINDS_OF_FILE = (".png", ".html")
IDEAL = "ideal"
_DASHES = ("-", "--", "-.", ":")
"""The lines of one strategy at several numbers of workers."""
_SIZE = (11.0, 4.5)
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>stratagem bench</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
td, th {{ padding: .2em 1em; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
th {{ border-bottom: 1px solid #999; }}
</style>
<h1>stratagem bench</h1>
<p>{title}</p>
{picture}
<table>
{table}
</table>
{advice}
</html>
"""


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return a row of text for each contender, under `HEADINGS`."""
    one = _one_device(results)
    return [_row(result, one) for result in results]


def _one_device(results: Sequence[Result]) -> Result | None:
    return next((each for each in results if each.contender.strategy == ONE_DEVICE and each.is_whole), None)


def results_table(results: Sequence[Result], seconds: float) -> Table:
    """Return a table with a row for each contender, after `seconds` of training; the fastest is bold."""
    table = Table(
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
        table.add_row(*row, style="bold" if is_best else None)
    return table


def plain_results(
    results: Sequence[Result], options: dict[str, Any], machine: dict[str, Any], advice: Sequence[str]
) -> dict[str, Any]:
    """Return the results, the options of the command, the figures of the machine and the advice as plain values."""
    one = _one_device(results)
    return {
        "asked": options,
        "machine": machine,
        "contenders": [_without_nan(_plain_result(result, one)) for result in results],
        "advice": list(advice),
    }


def _row(result: Result, one: Result | None) -> tuple[str, ...]:
    if not result.is_whole:
        return (result.contender.name, "failed", *([_NONE] * (len(HEADINGS) - 2)))
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
    values: dict[str, Any] = {
        "name": result.contender.name,
        "strategy": result.contender.strategy,
        "workers": result.contender.workers,
        "devices": result.contender.devices,
        "failure": result.failure,
    }
    if result.is_whole:
        values |= {
            "steps_per_second": result.steps_per_second,
            "examples_per_second": result.examples_per_second,
            "efficiency": None if one is None else result.efficiency(one),
            "loss": result.loss,
            "staleness": result.staleness,
            "most_staleness": result.most_staleness,
        }
    return {**values, "rounds": [asdict(each) for each in result.rounds]}


def _without_nan(value: Any) -> Any:
    """Return the value with `None` for infinity and NaN, which JSON cannot express."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Curves.


@dataclass(frozen=True)
class Series:
    """One line of a diagram."""

    name: str  # the name in the legend
    strategy: str  # its strategy, in `contenders.KINDS`, which has one colour in all diagrams
    points: tuple[tuple[float, float], ...]  # the points, from left to right


def losses(results: Sequence[Result]) -> list[Series]:
    """Return the loss over seconds of every contender."""
    return [
        Series(each.contender.name, each.contender.strategy, each.median_round.curve)
        for each in results
        if each.is_whole
    ]


def speeds(results: Sequence[Result]) -> list[Series]:
    """Return examples per second over the number of replicas for every strategy; each line begins at one device."""
    whole = [result for result in results if result.is_whole]
    points: dict[str, dict[int, float]] = {}
    for result in whole:
        points.setdefault(result.contender.strategy, {})[result.contender.replicas] = (
            result.examples_per_second
        )
    alone = points.pop(ONE_DEVICE, {})
    ideal = {count: count * alone[1] for line in points.values() for count in line} if alone else {}
    lines = [
        Series(KINDS[name].label, name, tuple(sorted((alone | line).items())))
        for name, line in points.items()
    ]
    return [*lines, *([Series(IDEAL, IDEAL, tuple(sorted((alone | ideal).items())))] if ideal else [])]


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that the curves can be drawn.

    Raises:
        LaunchError: The path is not that of a PNG or HTML file, or its directory does not exist.
        MissingExtra: matplotlib is not installed.
    """
    if path.suffix.lower() not in KINDS_OF_FILE:
        raise LaunchError(f"--plot {path}: give a file that ends in {' or '.join(KINDS_OF_FILE)}")
    if not path.absolute().parent.is_dir():
        raise LaunchError(f"--plot {path}: there is no directory {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            f"--plot {path} needs matplotlib, which is not installed: pip install 'stratagem[plot]'"
        ) from error


def write_plot(path: Path, results: Sequence[Result], title: str, advice: Sequence[str]) -> None:
    """Draw the curves into a PNG file, or a self-contained HTML page that has the table and the advice, too."""
    check_plot(path)
    figure = _draw(results, title)
    if path.suffix.lower() == ".png":
        figure.savefig(path, dpi=120)
    else:
        path.write_text(_page(_svg(figure), results, title, advice), encoding="utf-8")


def _draw(results: Sequence[Result], title: str) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_SIZE, layout="constrained")
    figure.suptitle(title, fontsize=10)
    left, right = figure.subplots(1, 2)
    colours = {name: f"C{place}" for place, name in enumerate(KINDS)} | {IDEAL: "grey"}
    drawn: Counter[str] = Counter()
    for series in losses(results):
        dashes = _DASHES[drawn[series.strategy] % len(_DASHES)]
        drawn[series.strategy] += 1
        left.plot(
            *zip(*series.points, strict=True),
            label=series.name,
            color=colours[series.strategy],
            linestyle=dashes,
        )
    left.set(xlabel="seconds", ylabel="loss")
    for series in speeds(results):
        style = {"linestyle": ":"} if series.name == IDEAL else {"marker": "o"}
        right.plot(
            *zip(*series.points, strict=True), label=series.name, color=colours[series.strategy], **style
        )
    right.set(xlabel="workers or devices", ylabel="examples per second", ylim=(0, None))
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
    return figure


def _svg(figure: "Figure") -> str:
    """Return the picture as an element of a page: without a prologue, and without metadata that names addresses."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _page(picture: str, results: Sequence[Result], title: str, advice: Sequence[str]) -> str:
    lines = [_table_row("th", HEADINGS), *(_table_row("td", row) for row in rows(results))]
    paragraphs = "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in advice)
    return _PAGE.format(title=html.escape(title), picture=picture, table="\n".join(lines), advice=paragraphs)


def _table_row(cell: str, words: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(word)}</{cell}>' for word in words)}</tr>"
