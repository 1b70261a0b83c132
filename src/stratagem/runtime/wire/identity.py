"""Whom a caller means to talk to: the task that it expects at an address, of the run that it belongs to."""

from dataclasses import dataclass

from stratagem.cluster import Address
from stratagem.devices import DeviceSpec
from stratagem.errors import ClusterError
from stratagem.runtime.wire.frames import Fields


@dataclass(frozen=True)
class Expected:
    """What the task at an address has to be; what is not known is not compared.

    Lists of addresses are no proof of one cluster: a task may know only itself, and each may write hosts its own way.

    Attributes:
        task: Its name, such as `/job:ps/task:0`; a session's first connection expects nobody in particular.
        run: The run of `stratagem run` that the caller is a task of, if it is one.
    """

    task: str | None = None
    run: str | None = None

    def check(self, address: Address, info: Fields) -> None:
        """Raise unless the task that told this of itself is the one that is expected.

        Raises:
            ClusterError: It is another one, or of another run.
        """
        found, run = info.get("task"), info.get("run")
        if self.task and found and found != self.task:
            job = DeviceSpec.from_string(self.task).job
            raise ClusterError(
                f"{address} is {found}, not {self.task}: check --{job}_hosts, or {job!r} in TF_CONFIG, and give every task "
                "of the job the same list"
            )
        if self.run and run and run != self.run:
            raise ClusterError(
                f"{address} is {found} of another run of `stratagem run` ({run}), not of this one ({self.run}): end "
                "that one, or give this one other ports"
            )
