"""An exception of a handler, on its way to the caller: our own classes by name, all others as text."""

import traceback

import stratagem.errors
from stratagem.errors import RemoteCallError, StratagemError
from stratagem.runtime.wire.frames import Fields

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
