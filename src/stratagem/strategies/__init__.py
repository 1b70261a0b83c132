"""Strategies: which devices and processes train a model, and how their gradients become one update."""

from stratagem.strategies.base import Strategy as Strategy
from stratagem.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
from stratagem.strategies.input_context import InputContext as InputContext
from stratagem.strategies.mirrored import MirroredStrategy as MirroredStrategy
from stratagem.strategies.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from stratagem.strategies.one_device import OneDeviceStrategy as OneDeviceStrategy
from stratagem.strategies.parameter_server import ParameterServerStrategy as ParameterServerStrategy
from stratagem.strategies.per_replica import PerReplica as PerReplica
from stratagem.strategies.tpu import TPUStrategy as TPUStrategy
