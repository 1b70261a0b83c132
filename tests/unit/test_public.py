"""The public list: what type checkers see and what the interpreter loads are the same names."""

import ast
from pathlib import Path

import pytest

import stratagem


def declared() -> dict[str, str]:
    tree = ast.parse(Path(stratagem.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_both_lists_agree() -> None:
    assert declared() == stratagem._HOME


@pytest.mark.parametrize("name", sorted(stratagem._HOME))
def test_every_name_loads_and_is_documented(name: str) -> None:
    assert getattr(stratagem, name).__doc__


def test_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'ClusterSpek'.*ClusterError"):
        stratagem.ClusterSpek  # noqa: B018
