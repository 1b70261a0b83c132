"""Round trips through Session variables against bare loops that move the same bytes, in one run, alternating.

    python benchmarks/session.py [--json]

A round trip is `variable.assign(x)` and `variable.read()`: the server keeps the value, the client gets it back.
The bare loops are those of `wire.py`. What counts are the ratios of medians.
"""

import json
import sys
from contextlib import ExitStack

import numpy as np
from wire import SIZES, bare_memory, bare_tcp, medians

import stratagem as sg
from drills.cluster import ServedCluster

TARGETS = {
    ("shared memory", "1.6 MB"): 2.5,
    ("shared memory", "64 MB"): 1.3,
    ("tcp", "1.6 MB"): 1.5,
    ("tcp", "64 MB"): 1.3,
}


def measure() -> list[dict[str, object]]:
    rows = []
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

                found = medians({"bare": bare(stack, size), "session": trip, "fresh": fresh})
            rows.append(
                {
                    "transport": transport,
                    "size": label,
                    "bare ms": 1e3 * found["bare"],
                    "session ms": 1e3 * found["session"],
                    "ratio": found["session"] / found["bare"],
                    "ratio with a new array": found["fresh"] / found["bare"],
                    "target": TARGETS[transport, label],
                }
            )
    return rows


def main() -> None:
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.2f}" if isinstance(value, float) else f"{value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    main()
