"""The numbers that sources give, read from environment variables and flags, and the first port."""

import re
from collections.abc import Mapping

from stratagem.errors import ClusterError

BASE_PORT = 8888
"""Local rank r of a host listens on `BASE_PORT + r` where a launcher names no ports, as in TensorFlow's Slurm resolver."""


def read_integer(text: str, where: str, least: int = 0) -> int:
    """Return the number that `text` spells in decimal digits.

    Args:
        text: The value of a variable or flag.
        where: The name of the variable or flag.
        least: The smallest number that makes sense.

    Raises:
        ClusterError: It is not a number, or below `least`.
    """
    if not re.fullmatch(r"-?[0-9]{1,18}", text) or int(text) < least:
        raise ClusterError(f"{where} is {text!r}; it must be a whole number, {least} or more")
    return int(text)


def read_variable(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    """Return the number in an environment variable, which must be set."""
    if name not in environ:
        raise ClusterError(f"{name} is not set; it must be a whole number, {least} or more")
    return read_integer(environ[name], name, least)
