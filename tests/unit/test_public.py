"""Lazy packages: what type checkers see and what the interpreter loads are the same names."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import stratagem
import stratagem.data
import stratagem.runtime
import stratagem.runtime.programs
import stratagem.strategies

PACKAGES = [stratagem, stratagem.data, stratagem.runtime, stratagem.runtime.programs, stratagem.strategies]


def declared(package: ModuleType) -> dict[str, str]:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        if node.module == package.__name__
        else str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


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
