"""The workers of a cluster that train in step, reached through a `Group` and this task's server."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

from stratagem.cluster import ClusterConfig
from stratagem.collectives import Group, GroupOptions
from stratagem.devices.global_arrays import gather, is_in_reach
from stratagem.engines.chief_files import ChiefFiles
from stratagem.engines.cluster_tasks import worker_tasks
from stratagem.engines.contributions import COLLECTING, gather_forms
from stratagem.engines.steps_under_way import StepsUnderWay
from stratagem.engines.workers import Array, ServerPreemptionNotice, Workers
from stratagem.errors import WorkerLost
from stratagem.runtime import Server
from stratagem.runtime.exits import at_normal_exit
from stratagem.runtime.stderr import report_briefly
from stratagem.waist.home import WorkerHome

T = TypeVar("T")


class GroupWorkers(Workers, WorkerHome):
    """All workers of a cluster, the chief among them and first.

    Args:
        config: The cluster, and which of its tasks this is.
        server: This task's server.
        options: The sizes of messages, and timeouts.

    Attributes:
        under_way: The steps that XLA sums for; `None` where the group sums by other means.
    """

    def __init__(self, config: ClusterConfig, server: Server, options: GroupOptions) -> None:
        tasks = worker_tasks(config)
        self.cluster = config.cluster
        self.is_chief = config.is_chief
        self.index = tasks.index(server.task)
        self.count = len(tasks)
        self.server = server
        self.files = ChiefFiles(server, tasks[0], lambda: self.group.check())
        self.group = Group(server, server.peers, tasks, self.index, options)
        self.under_way: StepsUnderWay | None = None
        self._forget_exit = at_normal_exit(self.close)
        report_briefly(WorkerLost)

    def are_on_one_host(self) -> bool:
        """Return whether every worker finds every other on its own host; this calls each of them."""
        others = [self.server.peers[task] for task in self.group.tasks if task != self.server.task]
        for peer in others:
            peer.call("ping")
        # All must come to the same answer, and nobody may be gone before the others have asked.
        own = all(peer.transport == "shared memory" for peer in others)
        return all(bool(each) for each in self.gather(np.asarray(own)))

    def gather(self, array: Array) -> Sequence[Array]:
        return [own[0] for own in self.group.all_gather([array])]

    def ready(self, value: T) -> T:
        if self.under_way is None:
            jax.block_until_ready(value)
            return value
        if not is_in_reach(value):
            gather_forms(self, COLLECTING)
            value = self.under_way.run(partial(gather, value))
        return self.under_way.ready(value)

    def status(self) -> dict[str, Any]:
        return {}

    def preemption_notice(self) -> ServerPreemptionNotice:
        return ServerPreemptionNotice(self.server, self.group.tasks, chief=None)

    def close(self) -> None:
        """Leave the other workers, having finished. Also called when this process ends well."""
        self._forget_exit()
        if self.under_way is not None:
            self.under_way.finish()  # others wait for this worker's part of them
        self.group.close()
        self.server.stop()
