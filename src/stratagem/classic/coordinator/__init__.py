"""A single client that drives all workers: functions scheduled on whichever is free, data made where it is used."""

from stratagem.classic.coordinator.cluster_coordinator import ClusterCoordinator as ClusterCoordinator
from stratagem.classic.coordinator.per_worker_dataset import PerWorkerDataset as PerWorkerDataset
from stratagem.classic.coordinator.remote_value import RemoteValue as RemoteValue
