"""Errors of sockets, TLS and the operating system become ours here, and nowhere else on the wire.

An exception of a handler, on its way to the caller: our own classes by name, all others as text.
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


def reason(error: OSError) -> str:
    """What the operating system says, in words."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if error.strerror:
        return error.strerror
    return os.strerror(error.errno) if error.errno else str(error) or type(error).__name__


def tls_hint(error: AuthenticationError) -> str | None:
    """What to do about a TLS connection that could not be made, as far as the library's word for it tells."""
    word = getattr(error.__cause__, "reason", None) or ""
    if "_ALERT_" in word:
        # A server's verdict on this side's certificate comes only after this side is content.
        return "the far side wants a certificate that its CA has signed: give tls= a cert and a key"
    if word == "WRONG_VERSION_NUMBER":
        return "the far side does not speak TLS: start it with tls= (STRATAGEM_TLS_CERT, STRATAGEM_TLS_KEY)"
    return None


def during_transfer(error: OSError) -> RemoteError:
    """For an open connection that failed; what is ours already stays as it is."""
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
    """For a connection that could not be made; what is ours already stays as it is."""
    if isinstance(error, RemoteError):
        return error
    return TaskUnreachable("no answer" if isinstance(error, TimeoutError) else reason(error))


def during_allocation(error: OSError) -> RemoteError:
    """For shared memory that could not be had."""
    return LimitExceeded(f"no shared memory: {reason(error)}")


_LONGEST = 16_000


def describe_failure(error: BaseException) -> Fields:
    """The fields of the reply that tells of an exception."""
    text = "".join(traceback.format_exception(error))
    return {
        "class": type(error).__name__,
        "message": _sendable(str(error)[:_LONGEST]),
        "traceback": _sendable(text[-_LONGEST:]),
        "task": getattr(error, "task", None),
    }


def first_line(error: BaseException) -> str:
    """What an error says, without the far side's traceback."""
    return str(error).partition("\n")[0]


def _sendable(text: str) -> str:
    """Without the halves of characters that names of files may hold, and msgpack may not."""
    return text.encode(errors="replace").decode()


def rebuild_failure(fields: Fields, task: str) -> StratagemError:
    """The exception that such a reply tells of, with the far task's name and traceback in it."""
    name, message, text = (str(fields.get(key, "")) for key in ("class", "message", "traceback"))
    # Only classes that the module of errors defines: a name from afar must not reach anything else.
    kind = vars(stratagem.errors).get(name)
    if not (isinstance(kind, type) and issubclass(kind, StratagemError)):
        kind, message = RemoteCallError, f"{name}: {message}" if message else name
    error: StratagemError = kind(
        f"{message}\n\nThis happened at {task}:\n{text.rstrip()}" if text else message
    )
    about = fields.get("task")  # the far side may tell of another task, to which something has happened
    vars(error).update(task=about if isinstance(about, str) else task, remote_traceback=text or None)
    return error
