"""A task that is as hard to end as possible: it ignores signals and starts children of every kind."""

import os
import signal
import subprocess
import sys
import time

SLEEP = "import sys, time; time.sleep(600)"


def main() -> None:
    """Start a child in this group, one in a session of its own, and an orphan; then ignore signals."""
    if os.getpid() % 2:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", SLEEP, "grandchild"])
    subprocess.Popen([sys.executable, "-c", SLEEP, "grandchild"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        subprocess.Popen([sys.executable, "-c", SLEEP, "grandchild"])
        os._exit(0)
    for line in range(10**9):
        print("still here", line)
        time.sleep(0.01)


main()
