"""`python -m drills --rounds 50 --seed 0`: every drill, then a table."""

import argparse
import sys

from drills import launcher, parameter_servers, wire
from drills.table import show


def main() -> None:
    """Run every drill and leave with 1 if one was not survived."""
    parser = argparse.ArgumentParser(
        prog="drills", description="Break things on purpose and count what was survived."
    )
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each drill")
    parser.add_argument("--seed", type=int, default=0, help="the same seed breaks the same things")
    options = parser.parse_args()
    outcomes = [
        outcome
        for area in (launcher, wire, parameter_servers)
        for outcome in area.drills(options.rounds, options.seed)
    ]
    sys.exit(not show(outcomes))


if __name__ == "__main__":
    main()
