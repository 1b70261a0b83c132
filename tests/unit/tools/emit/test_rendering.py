"""YAML that we write is read back as it was, by a parser that takes more words for something else than others do."""

import importlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratagem.tools.emit.rendering import YamlValue, comment, to_yaml

yaml: Any = importlib.import_module("yaml")

TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("ab1 :-#'\"\\\n\t.,[]{}&*!|>%@`$=~?", max_size=12),
)
TREES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)
AMBIGUOUS = [
    "", " ", "yes", "No", "ON", "off", "y", "~", "null", "Null", "true", "1", "-1", "+1", "1.5", "1e3", ".5", ".inf", "-.INF",
    ".nan", "0x1f", "0o17", "017", "1_000", "12:30:45", "2001-12-14", "=", "<<", "-", "--", "---", "...", "- a", "? a", ": a",
    "a: b", "a:", ":a", "a #b", "#a", "a ", " a", "@a", "`a", "%a", "&a", "*a", "!a", "|", ">", "[a]", "{a}", "a,b", "a\\b",
    "'a'", '"a"', "it's", "\\", "a\nb", "a\nb\n", "\na", "\n", "a\n\n", " a\nb", "\ta\nb", "a\n b\n", "a\r\nb", "\x00", "\x85",
    "\u2028", "\ufeff", "\U0001f600", "ü", "--steps", "-x", "on-failure:3", "stratagem:latest", "./a", "../a", "/", "a=b",
]  # fmt: skip


@given(st.dictionaries(TEXTS, TREES, max_size=4), st.integers(0, 3))
@example({"script": "\n  a\n\n   \n\tb  \nc\n", "next": 1}, 1)
def test_what_is_read_is_what_was_written(tree: dict[str, YamlValue], spaced: int) -> None:
    assert yaml.safe_load(to_yaml(tree, spaced)) == tree


@pytest.mark.parametrize("text", AMBIGUOUS, ids=json.dumps)
def test_text_stays_text(text: str) -> None:
    tree: dict[str, YamlValue] = {
        text: text,
        "list": [text, "b"],
        "in": {"depth": [{"key": text, "more": [[text]]}]},
        "next": "x",
    }
    assert yaml.safe_load(to_yaml(tree, 2)) == tree


def test_reads_well() -> None:
    tree: dict[str, YamlValue] = {
        "name": "train",
        "tasks": {"ps": {"command": ["stratagem", "serve"], "config": '{"a": 1}'}, "worker": {}},
        "script": "import a\n\nprint('x: y')\n",
        "mounts": [{"source": ".", "target": "/job"}, {"source": "/"}],
        "words": ["a long word" * 5, "another" * 10],
    }
    assert (
        to_yaml(tree)
        == """\
name: train
tasks:
  ps:
    command: [stratagem, serve]
    config: '{"a": 1}'
  worker: {}
script: |
  import a

  print('x: y')
mounts:
  - source: '.'
    target: /job
  - source: /
words:
  - a long worda long worda long worda long worda long word
  - anotheranotheranotheranotheranotheranotheranotheranotheranotheranother
"""
    )


def test_comments_have_no_end_in_between() -> None:
    assert comment("one\ntwo", "three") == "# one\n# two\n#\n# three\n"
