"""`python -m drills --rounds 50 --seed 0`: run every drill, then print a table of the outcomes."""

import argparse
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterable

from drills import (
    checkpoints,
    corrupt,
    cut_links,
    full_disk,
    large_table,
    launcher,
    multi_worker,
    parameter_servers,
    slow_worker,
    termination,
    wire,
)
from drills.processes import let_children_be_signalled
from drills.rounds import attempt
from drills.table import Outcome, show

DRILLS: dict[str, Callable[[int, int], Iterable[Outcome]]] = {
    "launcher": launcher.drills,
    "wire": wire.drills,
    "parameter-servers": parameter_servers.drills,
    "any-moment": parameter_servers.drills_at_any_moment,
    "large-table": large_table.drills,
    "multi-worker": multi_worker.drills,
    "cut": cut_links.drills,
    "slow": slow_worker.drills,
    "fill": full_disk.drills,
    "corrupt": corrupt.drills,
    "checkpoints": checkpoints.drills,
    "ends": termination.drills,
}


def main(argv: list[str] | None = None) -> int:
    """Run the drills. Return 0 if all were survived, else 1."""
    parser = argparse.ArgumentParser(
        prog="drills", description="Break things on purpose and count what was survived."
    )
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each drill")
    parser.add_argument("--seed", type=int, default=0, help="the same seed breaks the same things")
    parser.add_argument(
        "--only",
        action="append",
        choices=DRILLS,
        metavar="NAME",
        help=f"one of {', '.join(DRILLS)}; again for more",
    )
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; at least 1 is needed")
    let_children_be_signalled()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the finally clauses
    logging.getLogger("stratagem").addHandler(logging.NullHandler())  # what it warns of is part of the drills
    outcomes: list[Outcome] = []
    for name in options.only or DRILLS:
        began = time.monotonic()
        print(f"{name}: {options.rounds} rounds …", file=sys.stderr, flush=True)
        found: list[Outcome] = []

        def run(name: str = name, found: list[Outcome] = found) -> None:
            for outcome in DRILLS[name](options.rounds, options.seed):
                found.append(outcome)
                if outcome.problem is not None:  # what takes hours is not to be waited for
                    print(f"{outcome.drill}: {outcome.problem}", file=sys.stderr, flush=True)

        whole = attempt(f"{name}: the drill itself", "it runs to its end", run)
        if whole.problem is not None or whole.not_run is not None:
            found.append(whole)
        outcomes += found
        problems = sum(outcome.problem is not None for outcome in found)
        print(f"{name}: {time.monotonic() - began:.0f} s, {problems} problems", file=sys.stderr, flush=True)
    return int(not show(outcomes))


if __name__ == "__main__":
    sys.exit(main())
