"""Lazy packages: what type checkers see and what the interpreter loads are the same names."""

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import stratagem
import stratagem.classic.deploy
import stratagem.data
import stratagem.flax
import stratagem.keras
import stratagem.runtime
import stratagem.runtime.programs
import stratagem.strategies
from documents import ROOT

PACKAGES = [stratagem, stratagem.data, stratagem.runtime, stratagem.runtime.programs, stratagem.strategies]


def declared(package: ModuleType) -> dict[str, str]:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        str(alias.asname): home(node, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def home(node: ast.ImportFrom, name: str) -> str:
    """The module that has a name; the package itself if it is the name of one."""
    package = Path(stratagem.__file__).parents[1].joinpath(*str(node.module).split("."), name)
    return f"{node.module}.{name}" if package.is_dir() else str(node.module)


@pytest.mark.parametrize("package", PACKAGES)
def test_both_lists_agree(package: ModuleType) -> None:
    assert declared(package) == package._HOMES


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_loads_and_is_documented(package: ModuleType) -> None:
    for name in dir(package):
        assert getattr(package, name).__doc__, name


def test_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'ClusterSpek'.*ClusterError"):
        getattr(stratagem, "ClusterSpek")  # noqa: B009  a type checker would find the name itself


def test_every_name_has_a_place_in_the_reference() -> None:
    pages = [page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md")]
    told = [name for page in pages for name in re.findall(r"^::: stratagem\.([\w.]+)$", page, re.MULTILINE)]
    assert len(told) == len(set(told))
    packages = {name for name, home in stratagem._HOMES.items() if home.endswith(f".{name}")}
    names = {name for name, home in stratagem._HOMES.items() if home != "stratagem.errors"} - packages
    for package in (stratagem.data, stratagem.classic.deploy, stratagem.flax, stratagem.keras):
        names |= {f"{package.__name__.removeprefix('stratagem.')}.{name}" for name in package._HOMES}
    assert set(told) - names == {
        "errors",
        "tables.row_source.TableView",
        "parameters.rules.PushMachine",
        "parameters.rules.Push",
        "parameters.rules.Verdict",
    }  # the first is a page of its own, the second is returned, the others are for rules of a user's own
    assert names - set(told) == {"classic.deploy.on_device"}  # which is told as sg.on_device
