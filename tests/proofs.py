"""Which training API a run of the tests has proved under which strategy, and the table of it in the documentation.

A test says what it proves by the fixture `proves`; only those that passed count. `pytest --proved FILE` keeps what a
run has proved, together with what other runs have put there.

    python tests/proofs.py build/proved.json            # write the table
    python tests/proofs.py --check build/proved.json    # exit 1 if the table is not what was proved
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "strategies" / "index.md"
BEGIN, END = "<!-- proved: begin -->\n", "<!-- proved: end -->\n"

FUNCTIONS, TABLES = "`strategy.train_step`", "the same, with `sg.Table`"
KERAS, FLAX, ESTIMATOR = "Keras `fit`", "`sg.flax`", "`sg.Estimator`"
APIS = (FUNCTIONS, TABLES, KERAS, FLAX, ESTIMATOR)
STRATEGIES = {
    "OneDevice": "`OneDevice`",
    "Mirrored": "`Mirrored`",
    "CentralStorage": "`CentralStorage`",
    "MultiWorkerMirrored": "`MultiWorkerMirrored`",
    "Async": "`ParameterServer`, `Async`",
    "Sync": "`Sync`",
    "BoundedStaleness": "`BoundedStaleness`",
    "in-graph": "`in-graph`",
    "TPU": "`TPU`",
}
"""Names by which tests know strategies, and the heads of their columns."""

Proof = tuple[str, str]
Proves = Callable[[str, str], None]
"""What the fixture of that name is: called with an API and a strategy."""
_SIGNS = {
    "TPUStrategy": "TPU",
    "multi_worker_strategy": "MultiWorkerMirrored",
    "in-graph": "in-graph",
    "BoundedStaleness": "BoundedStaleness",
    "Sync(": "Sync",
    "ParameterServer": "Async",
    "MultiWorkerMirrored": "MultiWorkerMirrored",
    "Mirrored": "Mirrored",
    "CentralStorage": "CentralStorage",
    "OneDevice": "OneDevice",
}
"""What is found in the expressions that make strategies; the first counts."""


def column(expression: str) -> str:
    """The name of the strategy that an expression makes."""
    return next(name for sign, name in _SIGNS.items() if sign in expression)


def read(path: Path) -> set[Proof]:
    """What was proved so far."""
    return {(api, strategy) for api, strategy in json.loads(path.read_text())} if path.exists() else set()


def keep(path: Path, proofs: Iterable[Proof]) -> None:
    """Add what another run has proved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sorted(read(path) | set(proofs)), indent=1))


def table(proofs: set[Proof]) -> str:
    """The table in Markdown.

    Raises:
        ValueError: Something was proved that has no place in it.
    """
    stray = sorted(proof for proof in proofs if proof[0] not in APIS or proof[1] not in STRATEGIES)
    if stray:
        raise ValueError(f"no row or column for {stray}: the rows are {APIS}, the columns {list(STRATEGIES)}")
    lines = [["", *STRATEGIES.values()], ["---", *[":-:"] * len(STRATEGIES)]]
    lines += [[api, *("✓" if (api, strategy) in proofs else "" for strategy in STRATEGIES)] for api in APIS]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def placed(text: str, found: str) -> str:
    """A document with the table in its place."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + found + END + rest.split(END)[1]


def main() -> None:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("proved", type=Path, help="what `pytest --proved FILE` has written")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the table differs")
    options = parser.parse_args()
    found = table(read(options.proved))
    text = DOCUMENT.read_text()
    if options.check and placed(text, found) != text:
        sys.exit(f"the table in {DOCUMENT} is not what the tests have proved, which is:\n{found}")
    if not options.check:
        DOCUMENT.write_text(placed(text, found))


if __name__ == "__main__":
    main()
