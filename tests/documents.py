"""Finds the code blocks of README.md and docs/, and says what each promises. Pure: nothing here runs anything.

The rules, for writers:

- ```` ```python ```` is a whole script and ends with exit code 0. With `title="train.py"` it is also a file that the
  console blocks below it may use; if one does, that is how it is run.
- ```` ```console ```` has lines `$ command`, each followed by what it prints, if that is shown. Commands are `stratagem`,
  `python` and `make`, with NAME=value before them if need be, and `echo $?`, which shows the exit code of the last one.
  In the output `…` stands for anything, on a line by itself for any lines; numbers may differ. Lines of different tasks
  (`[worker:0] `) may come in any order.
- ```` ```shell ```` is not run: for what needs other hosts or does not end. Commands of `stratagem` in it must parse.
- ```` ```text ````, ```` ```json ```` and ```` ```yaml ```` are data. There is nothing else.
"""

import re
import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from stratagem.tools.launch.cli import stratagem

ROOT = Path(__file__).parents[1]
LANGUAGES = {"python", "console", "shell", "text", "json", "yaml"}
COMMANDS = {"stratagem", "python", "make"}
ANYTHING = "…"
EXIT_CODE = "echo $?"
EXAMPLES = "examples/"

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>```+)(?P<info>[^`]*)")
_TITLE = re.compile(r'title="([\w./-]+)"')
_NUMBER = re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?")
_LABEL = re.compile(r"\[(?:ps|worker|chief|evaluator):\d+\]")
_ASSIGNMENT = re.compile(r"\w+=")
_OPERATORS = re.compile(r"[();<>|&]+")
_INSTALLERS = {"pip", "git", "cd", "mkdir"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it is, what kind, and its text without the fences.

    Attributes:
        page: The page, as a path from the root.
        line: Where its opening fence is.
        language: The first word after the fence.
        attributes: The rest of that line.
        text: What is between the fences, without the indentation that a list gave it.
    """

    page: str
    line: int
    language: str
    attributes: str
    text: str

    @property
    def title(self) -> str | None:
        """The name of the file that it is."""
        found = _TITLE.fullmatch(self.attributes)
        return found[1] if found else None

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A line of a console block, and what it should do."""

    block: Block
    text: str
    output: tuple[str, ...]
    exit_code: int


def pages(root: Path = ROOT) -> list[str]:
    """README and every page of the documentation, translations too."""
    found = [*root.glob("README*.md"), *(root / "docs").rglob("*.md")]
    return sorted(str(path.relative_to(root)) for path in found)


def is_translation(page: str) -> bool:
    """Whether a page says in another language what another one says."""
    return page == "README.zh-CN.md" or page.startswith("docs/zh/")


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    found, opened = [], None
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.fullmatch(line)
        if opened is None:
            if match:
                opened, lines = (number, match), []
        elif match and match["fence"] == opened[1]["fence"] and not match["info"].strip():
            language, _, attributes = opened[1]["info"].strip().partition(" ")
            body = "".join(f"{each}\n" for each in lines)
            if opened[1]["indent"]:
                body = textwrap.dedent(body)
            found.append(Block(page, opened[0], language, attributes.strip(), body))
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"{page}:{opened[0]}: this block has no end")
    return found


def read_blocks(page: str, root: Path = ROOT) -> list[Block]:
    """The fenced blocks of a page of the project."""
    return blocks_of(page, (root / page).read_text())


def commands_of(block: Block) -> list[Command]:
    """What a console block runs.

    Raises:
        ValueError: It is not of the form that the rules give.
    """
    asked: list[tuple[str, list[str]]] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command = command[:-1] + next(lines).lstrip("> ")
            asked.append((command, []))
        elif not asked:
            raise ValueError(f"{block.place}: a console block begins with `$ ` and a command, not {line!r}")
        else:
            asked[-1][1].append(line)
    found: list[Command] = []
    for command, output in asked:
        if command == EXIT_CODE:
            before = found.pop()
            found.append(Command(block, before.text, before.output, int("".join(output))))
            continue
        words = words_of(command)
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if not words or words[0] not in COMMANDS or any(map(_OPERATORS.fullmatch, words)):
            raise ValueError(
                f"{block.place}: a console block runs {', '.join(sorted(COMMANDS))} and nothing else, not {command!r}; "
                "what is not to be run goes into a ```shell block"
            )
        found.append(Command(block, command, tuple(output), 0))
    return found


def file_of(block: Block) -> str:
    """The name of the file that a python block is."""
    return block.title or f"line_{block.line}.py"


def runs_of(page: str, root: Path = ROOT) -> list[Command]:
    """All that a page has to run, in its order: its commands, and the scripts that none of them runs."""
    blocks = read_blocks(page, root)
    commands = {block: commands_of(block) for block in blocks if block.language == "console"}
    used = {word for each in commands.values() for command in each for word in words_of(command.text)}
    return [
        run
        for block in blocks
        for run in (
            [Command(block, f"python {file_of(block)}", (), 0)]
            if block.language == "python" and file_of(block) not in used
            else commands.get(block, [])
        )
    ]


def alike(command: Command) -> list[Command]:
    """The command, and the same on other pages: it does the same if it runs an example. The first is to be run."""
    words = words_of(command.text)
    if not any(word.startswith(EXAMPLES) for word in words):
        return [command]
    others = [each for page in pages() if not is_translation(page) for each in runs_of(page)]
    return [each for each in others if words_of(each.text) == words]


def differences(expected: tuple[str, ...], output: str, errors: str = "") -> list[str]:
    """In what the output of a command is not what was shown; nothing if nothing was shown.

    Args:
        expected: The lines that were shown.
        output: Its standard output: all of it is to be shown, unless `…` stands for the rest.
        errors: Its standard error: lines of it may be shown, and the rest left out, such as the log on a slow day.
    """
    shown = [line for line in expected if line.strip()]
    if not shown:
        return []
    wanted = _by_label(line for line in shown if line.strip() != ANYTHING)
    said, told = _by_label(output.splitlines()), _by_label(errors.splitlines())
    missing = [
        line
        for label, lines in wanted.items()
        for line in _missing(lines, [said.get(label, []), told.get(label, [])], _is_like)
    ]
    if missing or ANYTHING in map(str.strip, shown):
        return missing
    return [
        f"not shown: {line}"
        for label, lines in said.items()
        for line in _missing(lines, [wanted.get(label, [])], lambda line, pattern: _is_like(pattern, line))
    ]


def _by_label(lines: Iterable[str]) -> dict[str, list[str]]:
    """Lines by the task that they are of, without empty ones."""
    grouped: dict[str, list[str]] = {}
    for line in lines:
        label = _LABEL.match(line)
        if line.strip():
            grouped.setdefault(label[0] if label else "", []).append(line)
    return grouped


def _missing(lines: list[str], streams: list[list[str]], are_alike: Callable[[str, str], bool]) -> list[str]:
    """The lines that none of the streams has, each after the one before it."""
    missing, rests = [], [list(stream) for stream in streams]
    for line in lines:
        for rest in rests:
            found = next((place for place, other in enumerate(rest) if are_alike(line, other)), None)
            if found is not None:
                del rest[: found + 1]
                break
        else:
            missing.append(line)
    return missing


def _is_like(pattern: str, line: str) -> bool:
    """Whether a line is what was shown, but for numbers, spaces and what `…` stands for."""
    pieces = [_with_any_numbers(" ".join(piece.split())) for piece in pattern.split(ANYTHING)]
    return re.fullmatch(r"\s*.*\s*".join(pieces), " ".join(line.split())) is not None


def _with_any_numbers(text: str) -> str:
    return _NUMBER.pattern.join(map(re.escape, _NUMBER.split(text)))


def words_of(command: str) -> list[str]:
    """The words of a shell command, operators such as `&&` by themselves, without its comment."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def shell_commands(block: Block) -> list[str]:
    """The command lines of a shell block. If some have a `$ ` before them, the others are output."""
    lines = block.text.replace("\\\n", " ").splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return prompted or [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def stratagem_calls(command: str) -> Iterator[list[str]]:
    """The arguments of each `stratagem …` in a command line, also of one that another host is to run."""
    try:
        words = words_of(command)
    except ValueError:  # part of a text over several lines
        return
    if not words or words[0] in _INSTALLERS:
        return
    for number, word in enumerate(words):
        if word == "stratagem" or word.endswith("/stratagem"):
            rest = words[number + 1 :]
            ends = [place for place, each in enumerate(rest) if _OPERATORS.fullmatch(each)]
            yield rest[: ends[0]] if ends else rest
            return
        if word.startswith("stratagem "):
            yield from stratagem_calls(word)


def check_call(arguments: list[str]) -> None:
    """Parse the arguments of `stratagem` as it would, without running it or looking at files.

    Raises:
        click.UsageError: It would not take them.
    """
    command: click.Command = stratagem
    context = click.Context(command, info_name="stratagem")
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, found, rest = command.resolve_command(context, rest)
        if found is None:
            raise click.UsageError(f"there is no command {name!r}")
        command = found
        context = click.Context(command, info_name=name, parent=context, **command.context_settings)
    if rest[:1] in (["--help"], ["--version"]):
        return
    given, left, _ = command.make_parser(context).parse_args(args=rest)
    if left:
        raise click.UsageError(f"{context.command_path} takes no {left}")
    for parameter in command.get_params(context):
        if parameter.is_eager or isinstance(parameter.type, click.Path):
            continue  # --help; a file of the reader's
        value = given.get(str(parameter.name))
        is_given = isinstance(value, str | tuple | list) and bool(value)
        if parameter.required and not is_given:
            raise click.MissingParameter(ctx=context, param=parameter)
        if is_given and "$" not in str(value):
            parameter.type_cast_value(context, value)
