"""Reads whole numbers from environment variables and flags, with an error that names the variable."""

import re
from collections.abc import Mapping

from stratagem.errors import ClusterError


def read_integer(text: str, where: str, least: int = 0) -> int:
    """The number that `text` spells in decimal digits.

    Args:
        text: what was given.
        where: the name of the variable or flag.
        least: the smallest number that makes sense.

    Raises:
        ClusterError: if it is no number, or below `least`.
    """
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
        raise ClusterError(f"{where} is {text!r}; it must be a whole number, {least} or more")
    return int(text)


def read_variable(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    """The number in the environment variable `name`, which must be set."""
    if name not in environ:
        raise ClusterError(f"{name} is not set; it must be a whole number, {least} or more")
    return read_integer(environ[name], name, least)
