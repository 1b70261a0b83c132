"""The pages keep the rules of documents.py, every link leads somewhere, and translations have the same code."""

import json
import re
from pathlib import Path

import click
import pytest

from documents import (
    EXAMPLES,
    LANGUAGES,
    ROOT,
    Block,
    blocks_of,
    check_call,
    commands_of,
    differences,
    is_translation,
    pages,
    read_blocks,
    shell_commands,
    stratagem_calls,
)

PAGES = pages()
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
TRANSLATIONS = {"README.zh-CN.md": "README.md", "docs/zh/quick_start.md": "docs/quick_start.md"}
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def console(text: str) -> Block:
    return Block("page.md", 1, "console", "", text)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_keep_the_rules(page: str) -> None:
    titles = set()
    for block in read_blocks(page):
        assert block.language in LANGUAGES, f"{block.place}: {block.language!r}; there is {LANGUAGES}"
        assert not block.attributes or (block.language == "python" and block.title), block.place
        if block.language == "python":
            compile(block.text, block.place, "exec")
            assert block.title is None or block.title not in titles, f"{block.place}: twice on a page"
            titles.add(block.title)
            if block.title and block.title.startswith(EXAMPLES):
                assert block.text == (ROOT / block.title).read_text(), f"{block.place} is not the example"
        elif block.language == "console":
            assert commands_of(block), block.place
        elif block.language == "json":
            json.loads(block.text)


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse(page: str) -> None:
    for block in read_blocks(page):
        commands = [each.text for each in commands_of(block)] if block.language == "console" else []
        for command in commands + (shell_commands(block) if block.language == "shell" else []):
            for arguments in stratagem_calls(command):
                try:
                    check_call(arguments)
                except click.UsageError as error:
                    pytest.fail(f"{block.place}: `{command}`: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for found in LINK.finditer(text):
        target = (found[1] or found[2]).partition("#")[0]
        if target and "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), f"{page}: {target}"


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"([\w/]+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(listed) == sorted(page.removeprefix("docs/") for page in PAGES if page.startswith("docs/"))


def test_every_translation_is_known() -> None:
    assert {page for page in PAGES if is_translation(page)} == set(TRANSLATIONS)


@pytest.mark.parametrize("page", TRANSLATIONS)
def test_translations_have_the_same_blocks(page: str) -> None:
    ours, theirs = (
        [(block.language, block.attributes, block.text) for block in read_blocks(each)]
        for each in (page, TRANSLATIONS[page])
    )
    assert ours == theirs


@pytest.mark.parametrize("page", TRANSLATIONS)
def test_translations_are_linked_both_ways(page: str) -> None:
    for here, there in ((page, TRANSLATIONS[page]), (TRANSLATIONS[page], page)):
        top = (ROOT / here).read_text().splitlines()[:6]
        links = {
            (ROOT / here).parent.joinpath(match[1]).resolve()
            for match in map(LINK.search, top)
            if match and match[1]
        }
        assert (ROOT / there).resolve() in links


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "diagrams").glob("*.svg")), ids=lambda path: path.name
)
def test_diagrams_are_used_and_need_nothing_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme" in text
    assert any(f"diagrams/{path.name}" in (ROOT / page).read_text() for page in PAGES)


# The rules themselves.


def test_blocks_are_found_where_they_are() -> None:
    text = 'a\n\n```python title="a.py"\nx = 1\n```\n\n- list\n\n    ```console\n    $ python a.py\n    ```\n'
    first, second = blocks_of("page.md", text)
    assert first == Block("page.md", 3, "python", 'title="a.py"', "x = 1\n")
    assert first.title == "a.py"
    assert second == Block("page.md", 9, "console", "", "$ python a.py\n")


def test_block_without_end() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2"):
        blocks_of("page.md", "a\n```python\nx = 1\n")


def test_commands_have_their_output_and_exit_code() -> None:
    block = console(
        "$ python a.py \\\n>   --fast   # quick\none\n\n$ make demo\n$ python b.py\nfails\n$ echo $?\n3\n"
    )
    first, second, third = commands_of(block)
    assert (first.text, first.output, first.exit_code) == ("python a.py --fast   # quick", ("one", ""), 0)
    assert (second.text, second.output) == ("make demo", ())
    assert (third.text, third.output, third.exit_code) == ("python b.py", ("fails",), 3)


@pytest.mark.parametrize("command", ["rm -rf a", "python a.py | tee b", "A=1", "kubectl apply -f a.yaml"])
def test_other_commands_are_not_run(command: str) -> None:
    with pytest.raises(ValueError, match="and nothing else"):
        commands_of(console(f"$ {command}\n"))


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        ([], "whatever"),
        (["loss 0.25, 12:30 s"], "loss 1e-05, 3 s\n"),
        (["loss … done"], "loss of everything, done\n"),
        (["…", "b", "…"], "a\nb\nc\n"),
        (["[worker:0] a", "[worker:1] b"], "[worker:1] b\n[worker:0]  a\n"),
        (["w [ 1.5 -2 ]"], "w [ -3.25   4.0 ]\n"),
    ],
)
def test_output_that_is_as_shown(expected: list[str], output: str) -> None:
    assert differences(tuple(expected), output) == []


def test_errors_may_be_shown_and_need_not_be() -> None:
    assert differences(("[worker:0] failed", "a"), "a\n", "waits\n[worker:0] failed\n") == []
    assert differences(("a",), "a\n", "waits\n") == []


@pytest.mark.parametrize(
    ("expected", "output", "missing"),
    [
        (["a", "b"], "b\na\n", ["b"]),
        (["loss 1"], "loss nan\n", ["loss 1"]),
        (["a"], "a\nb\n", ["not shown: b"]),
        (["…", "b"], "a\n", ["b"]),
        (["[worker:0] a"], "[worker:1] a\n", ["[worker:0] a"]),
    ],
)
def test_output_that_is_not(expected: list[str], output: str, missing: list[str]) -> None:
    assert differences(tuple(expected), output) == missing


@pytest.mark.parametrize(
    ("command", "calls"),
    [
        ("stratagem run --workers 2 a.py && echo done", [["run", "--workers", "2", "a.py"]]),
        ("ssh b 'stratagem status sg://a:2222'", [["status", "sg://a:2222"]]),
        ("A=1 srun -n 4 .venv/bin/stratagem devices  # all", [["devices"]]),
        ("pip install stratagem", []),
        ("cd stratagem", []),
    ],
)
def test_calls_are_found(command: str, calls: list[list[str]]) -> None:
    assert list(stratagem_calls(command)) == calls


def test_calls_that_would_be_taken() -> None:
    check_call(["run", "--ps", "1", "--workers", "$WORKERS", "a.py", "--steps", "3"])
    check_call(["serve", "--job_name", "ps", "--task_index", "0", "--secret-file", "not_here"])
    check_call(["run", "--help"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["runn", "a.py"],
        ["run"],
        ["run", "--worker", "2", "a.py"],
        ["run", "--workers", "two", "a.py"],
        ["run", "--workers", "0", "a.py"],
        ["status", "sg://a:2222", "more"],
    ],
)
def test_calls_that_would_not(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        check_call(arguments)
