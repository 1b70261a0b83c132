"""How a command that has processes of its own is interrupted."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stratagem.tools.launch.task import EXIT_INTERRUPTED, EXIT_TERMINATED


@contextmanager
def interruptible() -> Iterator[None]:
    """Have SIGTERM end this process by way of its finally clauses, as Ctrl-C does."""

    def leave(*_: Any) -> None:
        sys.exit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)
