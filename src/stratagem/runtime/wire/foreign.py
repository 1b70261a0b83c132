"""Errors of sockets, TLS and the operating system become ours here, and nowhere else on the wire."""

import os
import ssl

from stratagem.errors import (
    AuthenticationError,
    DeadlineExceeded,
    LimitExceeded,
    RemoteError,
    TaskLost,
    TaskUnreachable,
)


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
