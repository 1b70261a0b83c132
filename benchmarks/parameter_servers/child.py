"""A contender's process: `child.py MODULE FUNCTION TASK`, started by the harness or by `stratagem run`."""

import sys

from benchmarks.parameter_servers.task import Task, be

if __name__ == "__main__":
    module, function, task = sys.argv[1:]
    be(Task.from_json(task), "benchmarks.parameter_servers.contenders", module, function)
