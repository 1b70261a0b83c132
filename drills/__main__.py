"""`python -m drills --rounds 50 --seed 0`: every drill, then a table."""

import argparse
import sys
from random import Random

from drills import launcher
from drills.table import show


def main() -> None:
    """Run every drill and leave with 1 if one was not survived."""
    parser = argparse.ArgumentParser(
        prog="drills", description="Break things on purpose and count what was survived."
    )
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each drill")
    parser.add_argument("--seed", type=int, default=0, help="the same seed breaks the same things")
    options = parser.parse_args()
    outcomes = []
    for drill in (launcher.drill,):
        random = Random(options.seed)
        outcomes += [drill(random) for _ in range(options.rounds)]
    sys.exit(not show(outcomes))


if __name__ == "__main__":
    main()
