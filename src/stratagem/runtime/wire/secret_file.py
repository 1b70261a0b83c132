"""The file with the cluster's secret: read only if it is kept as one keeps a key."""

import logging
import os
import pwd
import stat
from pathlib import Path

from stratagem.errors import AuthenticationError

_log = logging.getLogger("stratagem")
_BY_GROUP, _BY_OTHERS = 0o070, 0o007


def read_secret(path: str | Path, named_by: str) -> bytes:
    """The secret in a file, without the white space around it.

    A file that other users can read is refused, as ssh does with keys. Not so on a file system that is mounted read-only:
    there the mode is up to whoever mounts it, as Kubernetes and Docker do for one container, whose group may read it.

    Args:
        path: The file.
        named_by: The variable or option that names it.

    Raises:
        AuthenticationError: It cannot be read, or others can.
    """
    try:
        with Path(path).open("rb") as file:
            status, system = os.fstat(file.fileno()), os.fstatvfs(file.fileno())
            secret = file.read().strip()
    except OSError as error:
        raise AuthenticationError(f"cannot read the secret's file ({named_by}): {error}") from error
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISREG(status.st_mode) or not mode & (_BY_GROUP | _BY_OTHERS):
        return secret
    if not system.f_flag & os.ST_RDONLY:
        raise AuthenticationError(
            f"the secret's file {path} ({named_by}) is open to other users: its mode is {mode:04o}, its owner "
            f"{_owner(status.st_uid)}. Let its owner alone read it: chmod 600 {path}"
        )
    if mode & _BY_OTHERS:
        _log.warning(
            "the secret's file %s (%s) is open to every user here: its mode is %04o. Mount it with mode 0400, or with "
            "0440 and a group of its own (defaultMode and fsGroup in Kubernetes)",
            path,
            named_by,
            mode,
        )
    return secret


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
