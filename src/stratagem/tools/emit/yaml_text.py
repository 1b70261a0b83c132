"""Writes plain values as YAML that people like to read and every parser reads back as it was.

Only what cannot be taken for anything else goes without quotes: YAML 1.1 has many words for true and false, and numbers
with colons in them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Plain: TypeAlias = "Mapping[str, Plain] | Sequence[Plain] | str | int | bool | None"

_WIDTH = 100
_STEP = "  "
_PART = r"[\w./@%+=-]"
_BARE = re.compile(rf"(?:-{{0,2}}[A-Za-z_]|\.{{0,2}}/)(?:{_PART}|[: ](?={_PART}))*", re.ASCII)
_TAKEN = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"}


def render(value: Mapping[str, Plain], spaced: int = 0) -> str:
    """One document.

    Args:
        value: What to write.
        spaced: On so many levels, from the top, entries are set apart by an empty line.

    Example:
        >>> print(render({"name": "train", "restart": "no", "command": ["python", "a b.py", "7"], "tasks": 3}), end="")
        name: train
        restart: 'no'
        command: [python, a b.py, '7']
        tasks: 3
    """
    return "".join(_mapping(value, "", spaced)) if value else "{}\n"


def _mapping(value: Mapping[str, Plain], indent: str, spaced: int) -> list[str]:
    entries = [
        f"{indent}{_one_line(key)}:{_value(inner, indent, spaced - 1)}" for key, inner in value.items()
    ]
    return ["\n".join(entries)] if spaced > 0 else entries


def _sequence(value: Sequence[Plain], indent: str) -> list[str]:
    lines = []
    for item in value:
        if isinstance(item, Mapping) and item:
            inner = "".join(_mapping(item, indent + _STEP, 0))
            lines.append(f"{indent}- {inner[len(indent + _STEP) :]}")
        else:
            lines.append(f"{indent}-{_value(item, indent, 0)}")
    return lines


def _value(value: Plain, indent: str, spaced: int) -> str:
    """What follows a key or a dash, with the line's end."""
    if isinstance(value, str):
        return f" {_block(value, indent + _STEP) or _one_line(value)}\n"
    if isinstance(value, Mapping) and value:
        return "\n" + "".join(_mapping(value, indent + _STEP, spaced))
    if isinstance(value, Sequence) and value:
        flow = f" [{', '.join(_one_line(item) for item in value)}]\n" if _is_flat(value) else None
        if flow is not None and len(indent + flow) <= _WIDTH:
            return flow
        return "\n" + "".join(_sequence(value, indent + _STEP))
    return f" {_one_line(value)}\n"


def _is_flat(value: Sequence[Plain]) -> bool:
    return all(isinstance(item, str | int | None) for item in value)


def _one_line(value: Plain) -> str:
    """A value without line breaks in its form: a scalar, or an empty collection."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return "{}" if isinstance(value, Mapping) else "[]"
    if _BARE.fullmatch(value) and value.lower() not in _TAKEN:
        return value
    if value.isprintable() and "'" in value and not {'"', "\\"} & set(value):
        return f'"{value}"'
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return '"' + "".join(map(_escaped, value)) + '"'


def _block(value: str, indent: str) -> str | None:
    """Text of several lines as it is; `None` where only quotes can keep it."""
    body = value.removesuffix("\n")
    lines = body.split("\n")
    if "\n" not in value or not lines[-1] or not all(line.replace("\t", "").isprintable() for line in lines):
        return None
    # Where the text itself begins with blanks, it must be said how deep it stands.
    depth = str(len(_STEP)) if not lines[0] or lines[0][0] in " \t" else ""
    end = "" if value.endswith("\n") else "-"
    return f"|{depth}{end}\n" + "\n".join(f"{indent}{line}" if line else "" for line in lines)


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
