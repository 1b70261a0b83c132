"""Tries to get into a cluster by its address, as a client and as a worker, and tells what came of it.

python stranger.py TARGET; what it knows of the secret and of TLS is in its environment.
"""

import sys
from collections.abc import Callable

import numpy as np
import optax

import stratagem as sg
from drills.task_messages import tell


def ask(target: str) -> None:
    with sg.Session(target) as session:
        session.devices()


def take_part() -> None:
    sg.ParameterServerStrategy().init({"w": np.zeros(3, np.float32)}, optax.sgd(1.0))


def refused(act: Callable[[], None]) -> str:
    try:
        act()
    except sg.StratagemError as error:
        return f"{type(error).__name__}: {error}"
    return "it was let in"


if __name__ == "__main__":
    tell(client=refused(lambda: ask(sys.argv[1])), worker=refused(take_part))
