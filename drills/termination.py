"""Ask parameter servers to end while workers push to them, twice in a row as Slurm does: all end with the promised exit code."""

import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import stratagem as sg
from drills import counting_files
from drills.cluster import ServedCluster
from drills.processes import until
from drills.rounds import attempt
from drills.table import Outcome

SERVERS, WORKERS = 3, 2
RULES = ("sg.Async()", "sg.Sync()")
ROWS = ("3", "100000")
"""Of the variables: small ones, and some that it takes a while to update."""
SECONDS = 60.0
TERMINATED = 128 + signal.SIGTERM
DRILL = "servers are asked to end, twice, under load"
CHECKED = f"each ends with exit code {TERMINATED} and says nothing on standard error"


def drill(random: Random) -> None:
    """Run one training whose servers are asked to end, each at a random moment."""
    with tempfile.TemporaryDirectory() as place:
        training = (
            sys.executable,
            str(counting_files.TASK),
            random.choice(RULES),
            place,
            random.choice(ROWS),
        )
        with ServedCluster(
            {"ps": SERVERS, "worker": WORKERS},
            {"worker": training},
            PYTHONPATH=str(counting_files.TASK.parent.parent),
        ) as cluster:
            if random.random() < 0.2:  # while the first programs are compiled
                for index in range(SERVERS):
                    sg.Session(cluster.target("ps", index), secret=cluster.secret).close()
            else:
                until("the first update", lambda: counting_files.reached(Path(place)), SECONDS)
            for index in range(SERVERS):
                # The moments are what is random here, not something to wait for.
                time.sleep(random.uniform(0.0, 0.3))
                cluster.process("ps", index).process.send_signal(signal.SIGTERM)
                time.sleep(random.uniform(0.0, 0.02))
                cluster.process("ps", index).process.send_signal(signal.SIGTERM)
            ends = [cluster.process("ps", index).finish(SECONDS) for index in range(SERVERS)]
    for index, (code, _, err) in enumerate(ends):
        assert (code, err) == (TERMINATED, ""), f"ps:{index} ended with {code}, and said: {err}"


def drills(rounds: int, seed: int) -> list[Outcome]:
    """Return the outcomes of this number of rounds."""
    random = Random(seed)
    return [attempt(DRILL, CHECKED, lambda: drill(random)) for _ in range(rounds)]
