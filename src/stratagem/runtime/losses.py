"""Whether a call that failed means that the task is gone, or that what it was asked to do has failed there."""

from stratagem.errors import DeadlineExceeded, StratagemError, TaskLost, TaskUnreachable
from stratagem.runtime.wire import Peer

_PING_SECONDS = 5.0


def is_lost(peer: Peer, error: BaseException) -> bool:
    """Whether a task is gone, as far as can be told from the error of a call to it."""
    if not isinstance(error, TaskLost | TaskUnreachable | DeadlineExceeded):
        return False
    if error.remote_traceback is None and not isinstance(error, DeadlineExceeded):
        return True
    # It told of another task that it has lost, or it takes long: then it still answers something else.
    try:
        peer.call("ping", timeout=_PING_SECONDS, wait=False)
    except StratagemError:
        return True
    return False
