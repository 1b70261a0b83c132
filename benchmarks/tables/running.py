"""A contender over tables, with its processes, and their memory."""

from pathlib import Path

from benchmarks.parameter_servers.running import Job, RunningJob
from benchmarks.racing.conversation import Absent
from benchmarks.racing.measuring import Turn
from benchmarks.results.machine import available_memory
from benchmarks.tables.task import TableTask
from benchmarks.tables.work import BATCHES, TableWork

CHILD = str(Path(__file__).with_name("child.py"))
_ROOM = 1.6
_PATIENCE = 300.0
"""Seconds: all rows of a large table are given their first values before training begins, where that is how it is done."""


class RunningTables(RunningJob):
    """A job with its processes, at a number of threads.

    Args:
        job: The contender.
        work: The work.
        threads: Number of threads of each process.
        peaks: Receives the peak memory, in bytes, of a server and a worker.

    Raises:
        Absent: There is not enough memory for its form of the tables.
    """

    def __init__(self, job: Job, work: TableWork, threads: int | None, peaks: dict[str, int]) -> None:
        copies = {"with a server": 1, "in step": job.processes}.get(job.launch, 0)
        needed = copies * _ROOM * work.nbytes
        if available_memory() < needed:
            raise Absent(f"its processes would need {needed / 1e9:.1f} GB")
        self._peaks = peaks
        super().__init__(job, TableTask(work, threads=threads).to_json(), threads, CHILD, _PATIENCE)

    def warm_up(self) -> None:
        """Go through all batches once, so that every row of them exists."""
        if self._job.launch != "in step":  # where every worker has all rows from the start
            self.reach(BATCHES * self._job.processes)
        super().warm_up()

    def turn(self, seconds: float) -> Turn:
        """Train for a number of seconds, and count global steps."""
        turn = super().turn(seconds)
        self._peaks |= self.peak_memory()
        return turn
