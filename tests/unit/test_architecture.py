"""docs/architecture.md shows the house as it is."""

import re

import pytest

from documents import ROOT
from unit.test_layers import LAYERS, PACKAGE, ROOMS

PAGE = (ROOT / "docs" / "architecture.md").read_text()
DRAWING = PAGE.partition("```text\n")[2].partition("```")[0]
PATHS = sorted(set(re.findall(r"`([a-z_/]+(?:\.py|/))`", PAGE)))
NAMED = sorted(
    set(re.findall(r"`([a-z_/]+\.py)`\s\(`(\w+)`", PAGE))
    | set(re.findall(r"`([a-z_/]+\.py)`: `(\w+)`", PAGE))
)


def level(package: str) -> int:
    """The lowest layer of a package; a room's is that of the lowest layer in it."""
    return min(
        place for place, layers in enumerate(LAYERS) for each in layers if each.split(".")[0] == package
    )


def test_the_drawing_has_every_layer_in_its_place() -> None:
    rows = [re.findall(r"(\w+)/(?:\s|$)", line) for line in DRAWING.splitlines()]
    drawn = [package for row in rows for package in row]
    assert sorted(drawn) == sorted(
        {each.split(".")[0] for layers in LAYERS for each in layers} - {"errors", "environment", "lazy"}
    )
    assert set(drawn) >= ROOMS
    levels = [max(map(level, row)) for row in rows if row]
    assert levels == sorted(levels, reverse=True), "a layer stands above one that it must not know"


@pytest.mark.parametrize("path", PATHS)
def test_a_place_that_it_names_is_there(path: str) -> None:
    assert (PACKAGE / path).exists()


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_name_that_it_names_is_in_that_file(path: str, name: str) -> None:
    assert re.search(rf"\b(class|def) {name}\b", (PACKAGE / path).read_text())
