"""The program of every task of a Slurm step: it learns which task of the cluster it is, and becomes a server or the script.

Slurm only numbers the tasks of a step. They are assigned in the order of `ClusterShape.tasks`: parameter servers, workers,
the chief of a single client, the evaluator.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from stratagem import environment
from stratagem.cluster import Address
from stratagem.cluster.sources import slurm
from stratagem.cluster.sources.numbers import BASE_PORT
from stratagem.errors import LaunchError, StratagemError
from stratagem.tools.emit.job import ClusterShape, tf_config

_SERVE = (sys.executable, "-P", "-m", "stratagem", "serve")
_EXIT_USAGE = 2
_END = "--"


def task_environment(
    shape: ClusterShape, port: int, environ: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the job of this task, and the variables to set in its environment.

    The first task of each node listens on `port`, the others on the following ports; `environ` is from Slurm.
    """
    if not slurm.is_present(environ):
        if len(shape.tasks) > 1:
            raise LaunchError(
                f"this process is not in a Slurm step of several tasks, and the cluster has {len(shape.tasks)}: start it with "
                f"srun --ntasks={len(shape.tasks)}"
            )
        return shape.tasks[0][0], shape.environment(shape.tasks[0][0], environ)
    step = slurm.resolve(environ)
    addresses = [Address.parse(task.address) for task in step.cluster.tasks()]
    if len(addresses) != len(shape.tasks):
        raise LaunchError(
            f"the Slurm step has {len(addresses)} tasks, and the cluster {len(shape.tasks)} ({shape}): start it with srun "
            f"--ntasks={len(shape.tasks)}"
        )
    task_addresses = {
        task: str(Address(address.host, address.port - BASE_PORT + port))
        for task, address in zip(shape.tasks, addresses, strict=True)
    }
    job, index = shape.tasks[step.task_index]
    cluster = shape.cluster(lambda name, number: task_addresses[name, number])
    return job, {"TF_CONFIG": tf_config(cluster, job, index), **shape.environment(job, environ)}


def read_arguments(argv: Sequence[str]) -> tuple[ClusterShape, int, list[str]]:
    """Return the shape, the port and the script's command of a command line."""
    parser = argparse.ArgumentParser(prog="python -m stratagem.tools.emit.slurm_task", description=__doc__)
    parser.add_argument("--ps", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--single-client", action="store_true")
    parser.add_argument("--evaluator", action="store_true")
    parser.add_argument("--devices-per-worker", type=int)
    parser.add_argument("--port", type=int, default=BASE_PORT)
    end = argv.index(_END) if _END in argv else len(argv)
    options = parser.parse_args(argv[:end])
    if end + 1 >= len(argv):
        parser.error(f"nothing to run: give the script's command after {_END}")
    shape = ClusterShape(
        ps=options.ps,
        workers=options.workers,
        evaluator=options.evaluator,
        single_client=options.single_client,
        devices_per_worker=options.devices_per_worker,
    )
    return shape, options.port, list(argv[end + 1 :])


def main() -> None:
    """Replace this process by the server or the script."""
    try:
        shape, port, command = read_arguments(sys.argv[1:])
        job, variables = task_environment(shape, port, environment.current())
    except StratagemError as error:
        sys.stderr.write(f"stratagem: {error}\n")
        sys.exit(_EXIT_USAGE)
    environment.set_variables(variables)
    words = list(_SERVE) if shape.serves(job) else command
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"stratagem: cannot run {words[0]!r}: {error.strerror}")


if __name__ == "__main__":
    main()
