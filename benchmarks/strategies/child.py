"""A contender's process: `python -m benchmarks.strategies.child MODULE FUNCTION TASK`, started by the harness."""

import importlib
import os
import sys

from benchmarks.strategies.task import Run, Start, Task, answer


def main(module: str, function: str, task_json: str) -> None:
    task = Task.from_json(task_json)

    def start() -> Run:
        home = importlib.import_module(f"benchmarks.strategies.contenders.{module}")
        begin: Start = getattr(home, function)
        return begin(task)

    answer(task.index, start)
    sys.stderr.flush()
    os._exit(0)  # the harness has what it wants; some frameworks wait for their peers at a normal exit


if __name__ == "__main__":
    main(*sys.argv[1:])
