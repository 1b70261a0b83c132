"""The page on troubleshooting cannot rot: it has every exception, and each message on it is one that the code can say."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from documents import ANYTHING, ROOT, Block, blocks_of
from stratagem import errors

PAGE = "docs/troubleshooting.md"
SOURCE = Path(errors.__file__).parent
CLASSES = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
SHORTEST = 12
"""Characters that a message needs to be told from others."""
_PLACEHOLDER = re.compile(r"%(?:\.\d+)?[sdgfr]")


class Said(NamedTuple):
    """A text in the code, `…` for what is put in, and the exception that is made of it, if that can be seen."""

    text: str
    raised: str | None


def texts_of(tree: ast.AST) -> Iterator[Said]:
    """The texts in a module, but for docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    raised = {id(node.args[0]): name for node in ast.walk(tree) if (name := _raised_by(node)) and node.args}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (str(each.value) if isinstance(each, ast.Constant) else ANYTHING for each in node.values)
            yield Said(_plain("".join(parts)), raised.get(id(node)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Said(_plain(_PLACEHOLDER.sub(ANYTHING, node.value)), raised.get(id(node)))


def _raised_by(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.func.id in CLASSES:
        return node.func.id
    is_cluster_error = isinstance(node.func, ast.Attribute) and node.func.attr == "error"
    return "ClusterError" if is_cluster_error and ast.unparse(node.func) != "_log.error" else None


def _plain(text: str) -> str:
    return " ".join(text.split())


def wrong_message(message: str, section: str, said: list[Said]) -> str | None:
    """What is wrong with a message that the page has in a section; `None` if nothing is."""
    pieces = [piece.strip() for piece in _plain(message).split(ANYTHING)]
    if len("".join(pieces)) < SHORTEST:
        return "is too short to be told from others"
    sought = re.compile(".*".join(map(re.escape, pieces)))
    found = [each for each in said if sought.search(each.text)]
    if not found:
        return "is nowhere in the code"
    raised = {each.raised for each in found}
    if section in CLASSES and None not in raised:
        fitting = [name for name in raised if name and issubclass(CLASSES[name], CLASSES[section])]
        return None if fitting else f"is a {', '.join(sorted(map(str, raised)))}, not a {section}"
    return None


def sections_of(page: str) -> list[tuple[str, str]]:
    """The sections of the second level: the title without its marks, and the text."""
    parts = re.split(r"^## +(.*)$", page, flags=re.MULTILINE)[1:]
    return [(title.strip("` "), text) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def messages_of(section: str) -> list[str]:
    """The messages that a section quotes: one per block, or several with an empty line between them."""
    blocks: list[Block] = [block for block in blocks_of(PAGE, section) if block.language == "text"]
    return [part for block in blocks for part in block.text.strip().split("\n\n")]


@pytest.fixture(scope="module")
def said() -> list[Said]:
    modules = (ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py")))
    return [each for module in modules for each in texts_of(module)]


PAGE_SECTIONS = sections_of((ROOT / PAGE).read_text())


def test_every_exception_has_a_section() -> None:
    titles = [title for title, _ in PAGE_SECTIONS]
    assert sorted(title for title in titles if title in CLASSES) == sorted(CLASSES)
    misspelt = [title for title in titles if re.fullmatch(r"[A-Z]\w+(Error|Lost|Exceeded|Refused)", title)]
    assert set(misspelt) <= set(CLASSES)


@pytest.mark.parametrize(("title", "text"), PAGE_SECTIONS, ids=[title for title, _ in PAGE_SECTIONS])
def test_its_messages_are_those_of_the_code(title: str, text: str, said: list[Said]) -> None:
    problems = {message: wrong_message(message, title, said) for message in messages_of(text)}
    assert {message: problem for message, problem in problems.items() if problem} == {}


def test_there_are_messages() -> None:
    assert sum(len(messages_of(text)) for _, text in PAGE_SECTIONS) > 100


CODE = '''
def check(name):
    """the docstring says this in many words"""
    if name:
        raise DataError(f"there is no {name!r} here: give "
                        "another one")
    raise names.error(f"{name} is not a task of this cluster")
    _log.warning("waiting for %s (%.0f s so far)", name, 5)
'''


@pytest.mark.parametrize(
    ("message", "section", "problem"),
    [
        ("there is no … here: give another one", "DataError", None),
        ("there is no …\nhere: give …", "DataError", None),
        ("… here: give another one", "StratagemError", None),
        ("… here: give another one", "What the log says", None),
        ("there is no … here: give another one", "KeepError", "is a DataError, not a KeepError"),
        ("there is no … here: take another one", "DataError", "is nowhere in the code"),
        ("the docstring says this in many words", "DataError", "is nowhere in the code"),
        ("… is not a task of this cluster", "ClusterError", None),
        ("waiting for … (… s so far)", "What the log says", None),
        ("… here …", "DataError", "is too short to be told from others"),
    ],
)
def test_what_counts_as_said(message: str, section: str, problem: str | None) -> None:
    assert wrong_message(message, section, list(texts_of(ast.parse(CODE)))) == problem
