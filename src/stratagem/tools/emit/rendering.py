"""The text of emitted files: readable YAML that every parser reads back unchanged, and comments.

Text that could be taken for another type is quoted: YAML 1.1 has many words for true and false, and numbers with colons.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

YamlValue: TypeAlias = "Mapping[str, YamlValue] | Sequence[YamlValue] | str | int | bool | None"

_WIDTH = 100
_STEP = "  "
_CHARACTER = r"[\w./@%+=-]"
_UNQUOTED = re.compile(rf"(?:-{{0,2}}[A-Za-z_]|\.{{0,2}}/)(?:{_CHARACTER}|[: ](?={_CHARACTER}))*", re.ASCII)
_RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"}


def comment(*paragraphs: str) -> str:
    """Return text as comment lines of YAML or a shell, with an empty one between paragraphs.

    Example:
        >>> print(comment("Start it:", commands(["make start"])), end="")
        # Start it:
        #
        #   make start
    """
    lines = "\n\n".join(paragraphs).split("\n")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def commands(lines: Iterable[str]) -> str:
    """Return commands as indented lines."""
    return "\n".join(f"  {line}" for line in lines)


def to_yaml(value: Mapping[str, YamlValue], spaced_levels: int = 0) -> str:
    """Return one YAML document.

    Args:
        value: The content.
        spaced_levels: Number of levels, from the top, whose entries are separated by an empty line.

    Example:
        >>> print(to_yaml({"name": "train", "restart": "no", "command": ["python", "a b.py", "7"], "tasks": 3}), end="")
        name: train
        restart: 'no'
        command: [python, a b.py, '7']
        tasks: 3
    """
    return "".join(_mapping(value, "", spaced_levels)) if value else "{}\n"


def _mapping(value: Mapping[str, YamlValue], indent: str, spaced_levels: int) -> list[str]:
    entries = [
        f"{indent}{_one_line(key)}:{_value(inner, indent, spaced_levels - 1)}" for key, inner in value.items()
    ]
    return ["\n".join(entries)] if spaced_levels > 0 else entries


def _sequence(value: Sequence[YamlValue], indent: str) -> list[str]:
    lines = []
    for item in value:
        if isinstance(item, Mapping) and item:
            inner = "".join(_mapping(item, indent + _STEP, 0))
            lines.append(f"{indent}- {inner[len(indent + _STEP) :]}")
        else:
            lines.append(f"{indent}-{_value(item, indent, 0)}")
    return lines


def _value(value: YamlValue, indent: str, spaced_levels: int) -> str:
    """Return the text after a key or a dash, with the line's end."""
    if isinstance(value, str):
        return f" {_block(value, indent + _STEP) or _one_line(value)}\n"
    if isinstance(value, Mapping) and value:
        return "\n" + "".join(_mapping(value, indent + _STEP, spaced_levels))
    if isinstance(value, Sequence) and value:
        flow = f" [{', '.join(_one_line(item) for item in value)}]\n" if _is_flat(value) else None
        if flow is not None and len(indent + flow) <= _WIDTH:
            return flow
        return "\n" + "".join(_sequence(value, indent + _STEP))
    return f" {_one_line(value)}\n"


def _is_flat(value: Sequence[YamlValue]) -> bool:
    return all(isinstance(item, str | int | None) for item in value)


def _one_line(value: YamlValue) -> str:
    """Return a scalar, or an empty collection, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    if _UNQUOTED.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    if value.isprintable() and "'" in value and not {'"', "\\"} & set(value):
        return f'"{value}"'
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return '"' + "".join(map(_escape, value)) + '"'


def _block(value: str, indent: str) -> str | None:
    """Return text of several lines as a block; `None` if only quotes can preserve it."""
    body = value.removesuffix("\n")
    lines = body.split("\n")
    if "\n" not in value or not lines[-1] or not all(line.replace("\t", "").isprintable() for line in lines):
        return None
    # Text that itself begins with blanks needs its indentation stated.
    depth = str(len(_STEP)) if not lines[0] or lines[0][0] in " \t" else ""
    end = "" if value.endswith("\n") else "-"
    return f"|{depth}{end}\n" + "\n".join(f"{indent}{line}" if line else "" for line in lines)


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
