"""The curves of `stratagem bench`: loss over seconds, and examples per second over replicas, as PNG or as one HTML file."""

import html
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem.errors import LaunchError, MissingExtra
from stratagem.tools.bench.contenders import KINDS, ONE_DEVICE
from stratagem.tools.bench.report import HEADS, rows
from stratagem.tools.bench.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


@dataclass(frozen=True)
class Series:
    """One line of a diagram.

    Attributes:
        name: As the legend says it.
        strategy: Whose it is, among `contenders.KINDS`; it has one colour in all diagrams.
        points: From left to right.
    """

    name: str
    strategy: str
    points: tuple[tuple[float, float], ...]


def losses(results: Sequence[Result]) -> list[Series]:
    """The loss over seconds of every contender."""
    return [
        Series(each.contender.name, each.contender.strategy, each.usual_round.curve)
        for each in results
        if each.is_whole
    ]


def speeds(results: Sequence[Result]) -> list[Series]:
    """Examples per second over the number of replicas, for every strategy; one device is where each begins."""
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
    """See to it before anything is measured that it can be drawn.

    Raises:
        LaunchError: It is no PNG or HTML file, or cannot be written.
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
    """Draw the curves into a file.

    Args:
        path: A PNG, or an HTML page that has the table, too, and needs nothing from elsewhere.
        results: What was measured.
        title: What was asked.
        advice: What follows from it.
    """
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
    """The picture as an element of a page: no prologue, and no metadata that names addresses."""
    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _page(picture: str, results: Sequence[Result], title: str, advice: Sequence[str]) -> str:
    lines = [_table_row("th", HEADS), *(_table_row("td", row) for row in rows(results))]
    said = "\n".join(f"<p>{html.escape(sentence)}</p>" for sentence in advice)
    return _PAGE.format(title=html.escape(title), picture=picture, table="\n".join(lines), advice=said)


def _table_row(cell: str, words: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{html.escape(word)}</{cell}>' for word in words)}</tr>"
