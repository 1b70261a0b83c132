"""A contender's process: `child.py MODULE FUNCTION TASK`, started by the harness or by `stratagem run`."""

import sys

from benchmarks.parameter_servers.task import be
from benchmarks.tables.task import TableTask

if __name__ == "__main__":
    module, function, task = sys.argv[1:]
    be(TableTask.from_json(task), "benchmarks.tables.contenders", module, function)
