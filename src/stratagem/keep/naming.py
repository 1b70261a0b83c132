"""What directories and files of cuts are called, and which names are none of ours."""

import re

from stratagem.errors import KeepError

MANIFEST = "manifest.json"
SHARD_SUFFIX = ".safetensors"
PARTIAL_SUFFIX = ".partial"
"""Ends the name of a file that is still being written; one that stays is a leftover of a killed process."""

LAST_STEP = 10**12 - 1
_STEP = re.compile(r"step-([0-9]{12})")
# A name comes from outside when it is read: it must not lead out of the cut's directory.
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,127}")


def step_directory(step: int) -> str:
    """The name of the directory of the cut at a step.

    Example:
        >>> step_directory(123)
        'step-000000000123'
    """
    return f"step-{step:012d}"


def step_of(directory: str) -> int | None:
    """The step of a directory's name; `None` if it is not that of a cut."""
    match = _STEP.fullmatch(directory)
    return int(match[1]) if match else None


def shard_file_name(shard: str) -> str:
    """The name of the file that holds a shard.

    Raises:
        KeepError: `shard` cannot be a part of a file's name.
    """
    if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
        raise KeepError(
            f"a shard cannot be called {shard!r:.140}; names have up to 128 letters, digits and the characters "
            "_ . = + - and begin with a letter, a digit or _, such as 'ps-0'"
        )
    return shard + SHARD_SUFFIX


def shard_of(file: str) -> str:
    """The shard that a file of this name holds.

    Raises:
        KeepError: It is no name of a shard's file.
    """
    shard = file.removesuffix(SHARD_SUFFIX)
    if shard == file or not _SHARD.fullmatch(shard):
        raise KeepError(
            f"{file!r:.160} is no name of a shard's file; those are plain names without a directory that end "
            f"in {SHARD_SUFFIX}, such as 'ps-0{SHARD_SUFFIX}'"
        )
    return shard


def is_ours(file: str) -> bool:
    """Whether a file of a cut's directory is one that this layer writes, and so may remove."""
    return file == MANIFEST or file.endswith((SHARD_SUFFIX, PARTIAL_SUFFIX))
