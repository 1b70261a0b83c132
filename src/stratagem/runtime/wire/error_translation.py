"""Errors at the border of the wire: those of sockets, TLS and the operating system become ours, and ours travel.

Nothing else on the wire translates foreign errors. A handler's exception reaches the caller as the same class if it is
one of ours, and as text otherwise.
"""

import os
import ssl
import traceback

import stratagem.errors
from stratagem.errors import (
    AuthenticationError,
    DeadlineExceeded,
    LimitExceeded,
    RemoteCallError,
    RemoteError,
    StratagemError,
    TaskLost,
    TaskUnreachable,
)
from stratagem.runtime.wire.frames import Fields

_LONGEST = 16_000


def reason(error: OSError) -> str:
    """Return what the operating system says, in words."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if error.strerror:
        return error.strerror
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__


def tls_hint(error: AuthenticationError) -> str | None:
    """Return what to do about a failed TLS connection, if the TLS library's error code tells."""
    code = getattr(error.__cause__, "reason", None) or ""
    if "_ALERT_" in code:
        # A server's verdict on this side's certificate comes only after this side is content.
        return "the far side wants a certificate that its CA has signed: give tls= a cert and a key"
    if code == "WRONG_VERSION_NUMBER":
        return "the far side does not speak TLS: start it with tls= (STRATAGEM_TLS_CERT, STRATAGEM_TLS_KEY)"
    return None


def during_transfer(error: OSError) -> RemoteError:
    """Return our error for an open connection that failed; an error of ours is returned as it is."""
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TaskLost("the far side closed the connection")
    if isinstance(error, ssl.SSLError):
        return AuthenticationError(reason(error))
    # ETIMEDOUT is something else: the kernel has given up on a far side that is gone.
    if isinstance(error, BlockingIOError) or (isinstance(error, TimeoutError) and error.errno is None):
        return DeadlineExceeded("no progress in time")
    return TaskLost(reason(error))


def during_connect(error: OSError) -> RemoteError:
    """Return our error for a connection that could not be made; an error of ours is returned as it is."""
    if isinstance(error, RemoteError):
        return error
    return TaskUnreachable("no answer" if isinstance(error, TimeoutError) else reason(error))


def during_allocation(error: OSError) -> RemoteError:
    """Return our error for shared memory that could not be allocated."""
    return LimitExceeded(f"no shared memory: {reason(error)}")


def describe_failure(error: BaseException) -> Fields:
    """Return the fields of a reply that reports an exception."""
    text = "".join(traceback.format_exception(error))
    return {
        "class": type(error).__name__,
        "message": _encodable(str(error)[:_LONGEST]),
        "traceback": _encodable(text[-_LONGEST:]),
        "task": getattr(error, "task", None),
    }


def _encodable(text: str) -> str:
    """Replace lone surrogates, which names of files may contain and msgpack may not."""
    return text.encode(errors="replace").decode()


def first_line(error: BaseException) -> str:
    """Return an error's message without the far side's traceback."""
    return str(error).partition("\n")[0]


def rebuild_failure(fields: Fields, task: str) -> StratagemError:
    """Return the exception that a reply reports, with the far task's name and traceback in it."""
    name, message, text = (str(fields.get(key, "")) for key in ("class", "message", "traceback"))
    # Only classes that the module of errors defines: a name from afar must not reach anything else.
    kind = vars(stratagem.errors).get(name)
    if not (isinstance(kind, type) and issubclass(kind, StratagemError)):
        kind, message = RemoteCallError, f"{name}: {message}" if message else name
    error: StratagemError = kind(
        f"{message}\n\nThis happened at {task}:\n{text.rstrip()}" if text else message
    )
    about = fields.get("task")  # the error may be about another task than the one that reports it
    vars(error).update(task=about if isinstance(about, str) else task, remote_traceback=text or None)
    return error
