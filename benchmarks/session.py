"""Round trips through Session variables against bare loops that move the same bytes, in one run, alternating.

    python -m benchmarks.session [--rounds 12] [--json]

A round trip is `variable.assign(x)` and `variable.read()`: the server keeps the value, the client gets it back.
The bare loops are those of `wire.py`. What counts are the ratios within rounds.
"""

import json
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np

import stratagem as sg
from benchmarks.racing.taking_turns import show
from benchmarks.wire import SIZES, bare_memory, bare_tcp, in_turns
from drills.cluster import ServedCluster

TARGETS = {
    ("shared memory", "1.6 MB"): 2.5,
    ("shared memory", "64 MB"): 1.3,
    ("tcp", "1.6 MB"): 1.5,
    ("tcp", "64 MB"): 1.3,
}


def measure() -> list[dict[str, Any]]:
    lines = []
    for transport, bare in (("shared memory", bare_memory), ("tcp", bare_tcp)):
        for label, size in SIZES.items():
            with ExitStack() as stack:
                shm = "on" if transport == "shared memory" else "off"
                cluster = stack.enter_context(ServedCluster({"ps": 1}, STRATAGEM_SHM=shm))
                session = stack.enter_context(sg.Session(cluster.target("ps", 0), secret=cluster.secret))
                data = np.ones(size // 4, np.float32)
                answer = np.empty_like(data)
                variable = session.variable(data, name="x")

                def trip() -> None:
                    variable.assign(data)  # noqa: B023
                    variable.read(into=answer)  # noqa: B023

                def fresh() -> None:
                    variable.assign(data)  # noqa: B023
                    variable.read()  # noqa: B023

                name, again = transport, f"{transport}, new arrays"
                found = in_turns({"bare": bare(stack, size), name: trip, again: fresh})
            lines.append(found.compare(label, name, most=TARGETS[transport, label]))
            lines.append(found.compare(label, again))
    return lines


def main() -> None:
    lines = measure()
    if "--json" in sys.argv:
        print(json.dumps(lines))
    else:
        show(lines)


if __name__ == "__main__":
    main()
