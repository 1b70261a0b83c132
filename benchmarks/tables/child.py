"""A contender's process: `child.py MODULE FUNCTION TASK`, started by the harness or by `stratagem run`."""

import importlib
import os
import sys

from benchmarks.parameter_servers.task import Run, Start, answer
from benchmarks.racing.conversation import end_with_harness
from benchmarks.tables.task import TableTask


def main(module: str, function: str, told: str) -> None:
    task = TableTask.from_json(told)
    home = f"benchmarks.tables.contenders.{module}"
    if task.job == "ps":
        end_with_harness()
        importlib.import_module(home).serve(task)

    def start() -> Run:
        begin: Start = getattr(importlib.import_module(home), function)
        return begin(task)

    answer(task.index, start)
    sys.stderr.flush()
    if module == "tensorflow_tables":
        os._exit(0)  # the harness has what it wants, and TensorFlow waits for its peers at a normal exit


if __name__ == "__main__":
    main(*sys.argv[1:])
