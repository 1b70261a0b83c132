"""Drive all workers from one client: schedule functions on whichever worker is free, over data made where it is used.

A map, from the outside in:

    cluster_coordinator  ClusterCoordinator: one thread per worker runs closures there
    dispatch             deciding which closure runs where, and what a failure or a lost worker means
    closures             a scheduled function: its arguments and its RemoteValue
    datasets             PerWorkerDataset on the client, DatasetService on the worker
"""

from stratagem.classic.coordinator.closures import RemoteValue as RemoteValue
from stratagem.classic.coordinator.cluster_coordinator import ClusterCoordinator as ClusterCoordinator
from stratagem.classic.coordinator.datasets import PerWorkerDataset as PerWorkerDataset
