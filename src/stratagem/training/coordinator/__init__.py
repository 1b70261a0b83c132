"""A single client that drives all workers: functions scheduled on whichever is free, data made where it is used."""

from stratagem.training.coordinator.cluster_coordinator import ClusterCoordinator as ClusterCoordinator
from stratagem.training.coordinator.per_worker_dataset import PerWorkerDataset as PerWorkerDataset
from stratagem.training.coordinator.remote_value import RemoteValue as RemoteValue
