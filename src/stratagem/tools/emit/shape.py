"""The shape of a cluster that is started elsewhere: which tasks it has, what each of them is, and its devices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratagem.cluster import ClusterSpec
from stratagem.cluster.roles import CHIEF, EVALUATOR, PS, WORKER
from stratagem.devices import virtual_device_environment
from stratagem.environment import KERAS_BACKEND
from stratagem.errors import LaunchError


@dataclass(frozen=True)
class ClusterShape:
    """How many tasks of each job, and with which devices.

    Attributes:
        ps: Number of parameter servers.
        workers: Number of workers; worker 0 is the chief, unless there is a single client.
        evaluator: Whether there is an evaluator beside the cluster.
        single_client: Whether the script runs once, as the chief, and the workers only serve.
        devices_per_worker: Virtual CPU devices of each worker; none are made by default.
        gpus_per_worker: GPUs to ask for, for each worker.

    Raises:
        LaunchError: A count that makes no sense.

    Example:
        >>> ClusterShape(ps=1, workers=2).tasks
        (('ps', 0), ('worker', 0), ('worker', 1))
    """

    ps: int = 1
    workers: int = 3
    evaluator: bool = False
    single_client: bool = False
    devices_per_worker: int | None = None
    gpus_per_worker: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise LaunchError(f"--workers {self.workers}: a job needs at least 1 worker")
        if self.ps < 0:
            raise LaunchError(f"--ps {self.ps}: give 0 or more parameter servers")
        if self.devices_per_worker is not None and self.devices_per_worker < 1:
            raise LaunchError(
                f"--devices-per-worker {self.devices_per_worker}: a worker needs at least 1 device"
            )
        if self.gpus_per_worker is not None and self.gpus_per_worker < 1:
            raise LaunchError(
                f"--gpus-per-worker {self.gpus_per_worker}: give at least 1, or leave it out for workers on CPUs"
            )
        if self.devices_per_worker and self.gpus_per_worker:
            raise LaunchError(
                "--devices-per-worker makes virtual devices out of CPUs and --gpus-per-worker asks for GPUs: give one of them"
            )

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks each job has; jobs without tasks are left out."""
        counts = {
            PS: self.ps,
            WORKER: self.workers,
            CHIEF: int(self.single_client),
            EVALUATOR: int(self.evaluator),
        }
        return {job: count for job, count in counts.items() if count}

    @property
    def tasks(self) -> tuple[tuple[str, int], ...]:
        """Job and index of every task, servers first."""
        return tuple((job, index) for job, count in self.counts.items() for index in range(count))

    def serves(self, job: str) -> bool:
        """Whether the tasks of a job run no code of the user's."""
        return job == PS or (job == WORKER and self.single_client)

    def cluster(self, address: Callable[[str, int], str]) -> ClusterSpec:
        """The cluster, where each task is at the given address. The evaluator stands outside, as in TensorFlow."""
        return ClusterSpec(
            {
                job: [address(job, index) for index in range(count)]
                for job, count in self.counts.items()
                if job != EVALUATOR
            }
        )

    def environment(self, job: str, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of every task of a job, beside what says which task it is.

        Args:
            job: The job.
            inherited: What its tasks have in their environment already; nothing by default.
        """
        known = inherited or {}
        variables = {"PYTHONUNBUFFERED": "1", KERAS_BACKEND: known.get(KERAS_BACKEND, "jax")}
        if job == PS:
            # A server that found a GPU would take most of its memory away from the workers.
            variables["JAX_PLATFORMS"] = known.get("JAX_PLATFORMS", "cpu")
        elif job == WORKER and self.devices_per_worker is not None:
            # Nothing is known of the machine where it will run: no cores are counted on.
            variables |= virtual_device_environment(self.devices_per_worker, known, cores=0)
        return variables

    def gpus(self, job: str) -> int:
        """How many GPUs a task of a job is to have."""
        return self.gpus_per_worker or 0 if job == WORKER else 0

    def __str__(self) -> str:
        words = {PS: "parameter server", WORKER: "worker", CHIEF: "chief", EVALUATOR: "evaluator"}
        parts = [f"{count} {words[job]}{'s' if count > 1 else ''}" for job, count in self.counts.items()]
        return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
