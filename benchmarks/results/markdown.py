"""The figures of all benchmarks as one Markdown file. Pure: figures in, text out."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.parameter_servers.accuracy import CONTENDERS, POINTS, STEPS, WORKERS
from benchmarks.racing.figures import first_and_last_line
from benchmarks.racing.work import SMALL
from benchmarks.results.programs import PROGRAMS, Program
from benchmarks.results.reasons import Reasons

_HEAD = """# What the benchmarks came to

Made by `make bench-peers`; do not edit. Absolute figures are this machine's and vary from run to run. What counts are the
ratios: contenders take turns in one run, a ratio is that of two neighbouring turns, and the tables show the median of
all rounds and what the middle half of them lies between. A target is reached if the median reaches it."""
_SLOWER = "Slower than a peer where no target was set:"
_PEERS = ("TensorFlow", "PyTorch")
_AS_FAST = 0.97
"""From here on, the difference is this machine's noise."""


class Verdicts:
    """Targets that were reached, targets that were missed, and ratios without a target by which a peer is faster.

    Args:
        reasons: The written reasons.
    """

    def __init__(self, reasons: Reasons) -> None:
        self._reasons = reasons
        self._missed: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._slower: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._reached = 0

    def judge(self, program: Program, case: str, ratio: str, is_good: bool, found: str) -> str:
        """Return the word for a table, and remember a miss."""
        if is_good:
            self._reached += 1
            return "reached"
        self._note(self._missed, program, case, ratio, found)
        return "**missed**"

    def compare(self, program: Program, case: str, ratio: str, median: float) -> str:
        """Return the same for a ratio without a target, and remember it if a peer is faster."""
        if median >= _AS_FAST or not ratio.partition(" / ")[2].startswith(_PEERS):
            return ""
        self._note(self._slower, program, case, ratio, f"{median:.2f}")
        return "slower"

    def _note(
        self, notes: dict[tuple[str, str], list[str]], program: Program, case: str, ratio: str, found: str
    ) -> None:
        why = self._reasons.why(program.name, case, ratio)
        notes[f"{program.title}, {case}", why].append(f"**{ratio}** is {found}")

    def said(self) -> list[str]:
        """Return all reasons, each once."""
        total = self._reached + sum(map(len, self._missed.values()))
        parts = [f"{self._reached} of {total} targets reached."] if total else []
        for head, notes in (("Missed:", self._missed), (_SLOWER, self._slower)):
            if notes:
                lines = [f"- {case}: {'; '.join(found)}. {why}" for (case, why), found in notes.items()]
                parts += [head, "\n".join(lines)]
        return parts


def report(results: dict[str, Any], reasons: Reasons) -> str:
    """Return the whole file."""
    verdicts = Verdicts(reasons)
    known = {program.name: program for program in PROGRAMS}
    sections = [_section(known[each["program"]], each, verdicts) for each in results["programs"]]
    parts = [_HEAD, *verdicts.said(), _surroundings(results), *sections]
    return "\n\n".join(parts) + "\n"


def _surroundings(results: dict[str, Any]) -> str:
    commands = [
        f"python -m benchmarks.{each['program']} {shlex.join(each['arguments'])}"
        for each in results["programs"]
    ]
    rows = [
        [
            each["program"],
            each["begun"],
            f"`{each['command']}`",
            f"{each['seconds'] / 60:.1f}",
            f"{each['load before']:.1f}",
        ]
        for each in results["programs"]
    ]
    return "\n\n".join(
        [
            "## Where and how",
            _table(["", ""], ([name, value] for name, value in results["machine"].items())),
            _table(["", "version"], ([name, value] for name, value in results["versions"].items())),
            "```\n" + "\n".join(commands) + "\n```",
            _table(["program", "begun", "by", "minutes", "load before"], rows),
        ]
    )


def _section(program: Program, result: dict[str, Any], verdicts: Verdicts) -> str:
    head = f"## {program.title}\n\n{program.about}"
    if "figures" not in result:
        return f"{head}\n\n**It failed**, with exit code {result['exit code']}."
    figures = result["figures"]
    match program.form:
        case "races":
            parts = [_race(program, race, verdicts) for race in figures]
        case "served races":
            parts = [_race(program, race, verdicts) for race in figures["races"]]
            if figures["accuracy"]:
                parts.append(_accuracy(program, figures["accuracy"], verdicts))
        case "times":
            parts = [_times(program, figures, verdicts)]
        case "records":
            parts = [_records(program, figures, verdicts)]
    return "\n\n".join([head, *parts])


def _race(program: Program, race: dict[str, Any], verdicts: Verdicts) -> str:
    case = f"{race['model']}, {race['race']}"
    parts = [f"### {case}", f"Load before: {race['load before']:.1f}."]
    if race["contenders"]:
        unit = next(key for key in race["contenders"][0] if key.endswith(" per second"))
        cost = next(key for key in race["contenders"][0] if key.startswith("CPU seconds per "))
        rows = [
            [
                each["name"],
                each["threads"],
                f"{each[unit]['median']:,.0f}",
                f"{each[unit]['lower quartile']:,.0f} – {each[unit]['upper quartile']:,.0f}",
                f"{1000 * each[cost]:.3g}",
            ]
            for each in race["contenders"]
        ]
        milliseconds = cost.replace("CPU seconds per", "CPU ms per")
        parts.append(_table(["contender", "threads", unit, "middle half", milliseconds], rows))
        if "peak bytes" in race["contenders"][0]:
            parts.append(_memory(race["contenders"]))
    rows = []
    for each in race["comparisons"]:
        name, target, aim = f"{each['name']} / {each['against']}", each["target"], each["aim"]
        median = each["ratio"]["median"]
        goals = [f"≥ {target:g}"] if target is not None else []
        goals += [f"aim {aim:g}"] if aim is not None else []
        found = f"{median:.2f} instead of {target:g}" if target is not None else ""
        verdict = (
            verdicts.judge(program, case, name, median >= target, found)
            if target is not None
            else verdicts.compare(program, case, name, median)
        )
        best, by_cost = each["ratio of best rounds"], each["ratio by CPU time"]
        rows.append(
            [name, *_spread(each["ratio"]), f"{best:.2f}", f"{by_cost:.2f}", ", ".join(goals), verdict]
        )
    if rows:
        parts.append(_table(["ratio", "median", "middle half", "of best", "by CPU time", "target", ""], rows))
    left_out = [("absent", race["absent"]), ("failed", race["failed"])]
    said = [
        f"- {kind}: {name}: {first_and_last_line(why)}"
        for kind, whys in left_out
        for name, why in whys.items()
    ]
    return "\n\n".join([*parts, *(["\n".join(said)] if said else [])])


def _memory(contenders: Sequence[dict[str, Any]]) -> str:
    """Return the peak memory of processes."""
    rows = [
        [each["name"], *(f"{each['peak bytes'].get(task, 0) / 1e6:,.0f}" for task in ("ps", "worker"))]
        for each in contenders
    ]
    return _table(["contender", "server, MB at most", "a worker, MB at most"], rows)


def _accuracy(program: Program, found: dict[str, float | str], verdicts: Verdicts) -> str:
    case = f"{SMALL}, Fashion-MNIST"
    rows = [
        [name, f"{value:.2f} %" if isinstance(value, float) else first_and_last_line(value)]
        for name, value in found.items()
    ]
    ours, theirs = (found.get(job.name) for job in CONTENDERS)
    parts = [
        f"### {case}",
        f"Accuracy on the 10,000 test pictures, async, {WORKERS} workers, after {STEPS:,} global steps. "
        f"Target: within {POINTS:g} point of TensorFlow's.",
        _table(["contender", "accuracy"], rows),
    ]
    if isinstance(ours, float) and isinstance(theirs, float):
        difference = ours - theirs
        is_good = abs(difference) <= POINTS
        said = f"{difference:+.2f} points"
        verdict = verdicts.judge(program, case, "accuracy", is_good, f"{said} instead of ± {POINTS:g}")
        parts.append(f"Difference: {said}: {verdict}.")
    return "\n\n".join(parts)


def _times(program: Program, lines: Sequence[dict[str, Any]], verdicts: Verdicts) -> str:
    """Return times, where less is better."""
    rows = []
    for line in lines:
        name = f"{line['name']} / {line['against']}"
        ratio, most, limit = line["ratio"]["median"], line["most"], line["most microseconds"]
        goal = verdict = ""
        if most is not None:
            goal = f"≤ {most:g}"
            found = f"{ratio:.2f} instead of at most {most:g}"
            verdict = verdicts.judge(program, line["case"], name, ratio <= most, found)
        elif limit is not None:
            goal = f"≤ {limit:g} µs"
            found = f"{line['microseconds']:.0f} µs instead of at most {limit:g}"
            verdict = verdicts.judge(program, line["case"], name, line["microseconds"] <= limit, found)
        times = [f"{line['microseconds']:,.1f}", f"{line['microseconds against']:,.1f}"]
        rows.append([line["case"], name, *times, *_spread(line["ratio"]), goal, verdict])
    heads = ["", "time / time", "µs", "µs against", "ratio, median", "middle half", "target", ""]
    return _table(heads, rows)


def _records(program: Program, lines: Sequence[dict[str, Any]], verdicts: Verdicts) -> str:
    """Return records per second, where more is better."""
    rows = []
    for line in lines:
        case = f"{line['pixels']}, batch {line['batch']}, threads {line['threads']}"
        median, target = line["ratio"]["median"], line["target"]
        name = "stratagem / tf.data"
        found = f"{median:.2f} instead of {target:g}"
        verdict = verdicts.judge(program, case, name, median >= target, found)
        rates = [f"{line['stratagem']:,.0f}", f"{line['tf.data']:,.0f}"]
        rows.append([case, *rates, *_spread(line["ratio"]), f"≥ {target:g}", verdict])
    heads = ["", "stratagem, records/s", "tf.data, records/s", "ratio, median", "middle half", "target", ""]
    return _table(heads, rows)


def _spread(ratio: dict[str, float]) -> list[str]:
    return [f"{ratio['median']:.2f}", f"{ratio['lower quartile']:.2f} – {ratio['upper quartile']:.2f}"]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(word) for word in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
