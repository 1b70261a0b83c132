"""The table of what the tests have proved."""

from pathlib import Path

import pytest

import proofs
from proofs import APIS, BEGIN, DOCUMENT, END, STRATEGIES
from unit import inner_pytest


def test_a_tick_only_where_something_was_proved() -> None:
    rows = proofs.table({(APIS[1], "Mirrored"), (APIS[0], "TPU")}).splitlines()
    assert len(rows) == 2 + len(APIS)
    ticked = [
        (row, column)
        for row, line in enumerate(rows[2:])
        for column, cell in enumerate(line.strip("|").split("|")[1:])
        if "✓" in cell
    ]
    columns = list(STRATEGIES)
    assert ticked == [(0, columns.index("TPU")), (1, columns.index("Mirrored"))]


def test_what_has_no_place_is_told() -> None:
    with pytest.raises(ValueError, match=r"no row or column for .*Horovod"):
        proofs.table({(APIS[0], "Horovod")})


def test_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "build" / "proved.json"
    proofs.keep(path, [(APIS[0], "TPU")])
    proofs.keep(path, [(APIS[1], "Sync"), (APIS[0], "TPU")])
    assert proofs.read(path) == {(APIS[0], "TPU"), (APIS[1], "Sync")}


def test_the_documentation_has_a_place_for_it() -> None:
    text = DOCUMENT.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert "| new |\n" in proofs.placed(text, "| new |\n")
    assert proofs.placed(proofs.placed(text, "x\n"), "y\n") == proofs.placed(text, "y\n")


def test_passed_tests_are_kept_and_failed_ones_are_not(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    code = (
        "def test_good(proves): proves('an API', 'a strategy')\n"
        "def test_bad(proves):\n    proves('an API', 'another strategy')\n    assert False\n"
    )
    done = inner_pytest.run(tmp_path, code, "--proved", found)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert proofs.read(found) == {("an API", "a strategy")}
