"""The two shorthands in which Slurm writes lists: of nodes, `n[1-2,05-07],m5`, and of counts, `3(x2),2`."""

import itertools
import re

from stratagem.errors import ClusterError

_MOST = 65536  # what Slurm itself allows in one expression
_NODE = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")


def expand_nodes(text: str) -> list[str]:
    """The node names, in order.

    A name may have several bracketed lists of numbers and ranges; numbers keep their leading zeros.

    Example:
        >>> expand_nodes("n[1-2,05-07],m5")
        ['n1', 'n2', 'n05', 'n06', 'n07', 'm5']
        >>> expand_nodes("r[0-1]n[1,2]")
        ['r0n1', 'r0n2', 'r1n1', 'r1n2']
    """
    if not re.fullmatch(rf"{_NODE.pattern}(?:,{_NODE.pattern})*", text):
        raise _wrong_nodes(text)
    names: list[str] = []
    for node in _NODE.findall(text):
        # Literal text at even places, the insides of brackets at odd ones.
        parts = [
            _expand_ranges(part, text) if place % 2 else [part]
            for place, part in enumerate(_BRACKETS.split(node))
        ]
        names += itertools.islice(map("".join, itertools.product(*parts)), _MOST + 1 - len(names))
        if len(names) > _MOST:
            raise ClusterError(f"{text!r} stands for more than {_MOST} nodes")
    return names


def expand_counts(text: str) -> list[int]:
    """The counts, one per node, in order.

    Example:
        >>> expand_counts("3(x2),2")
        [3, 3, 2]
    """
    counts: list[int] = []
    for part in text.split(","):
        count = _COUNT.fullmatch(part)
        if count is None or int(count[2] or 1) > _MOST:
            raise ClusterError(f"{text!r} is not a list of counts as Slurm writes them, as in '3(x2),2'")
        counts += [int(count[1])] * int(count[2] or 1)
        if sum(counts) > _MOST:
            raise ClusterError(f"{text!r} stands for more than {_MOST} tasks")
    return counts


def _expand_ranges(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            raise _wrong_nodes(text)
        first, last = int(bounds[1]), int(bounds[2] or bounds[1])
        if not first <= last <= first + _MOST:
            raise _wrong_nodes(text)
        numbers += [str(number).zfill(len(bounds[1])) for number in range(first, last + 1)]
    return numbers


def _wrong_nodes(text: str) -> ClusterError:
    return ClusterError(f"{text!r} is not a list of nodes as Slurm writes them, as in 'n[1-2,05-07],m5'")
