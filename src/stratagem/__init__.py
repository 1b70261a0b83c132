"""Stratagem: write the model once, train it on one device, on all devices of a machine, or on a cluster.

`import stratagem as sg`. Names are loaded when first used, so that importing the package costs next to
nothing and does not import JAX.
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem import data as data
    from stratagem import flax as flax
    from stratagem import keras as keras
    from stratagem.classic import deploy as deploy
    from stratagem.classic import estimator as estimator
    from stratagem.classic.coordinator import ClusterCoordinator as ClusterCoordinator
    from stratagem.classic.coordinator import PerWorkerDataset as PerWorkerDataset
    from stratagem.classic.coordinator import RemoteValue as RemoteValue
    from stratagem.classic.deploy import on_device as on_device
    from stratagem.classic.estimator import DNNClassifier as DNNClassifier
    from stratagem.classic.estimator import Estimator as Estimator
    from stratagem.classic.estimator import EstimatorSpec as EstimatorSpec
    from stratagem.classic.estimator import EvalSpec as EvalSpec
    from stratagem.classic.estimator import LinearRegressor as LinearRegressor
    from stratagem.classic.estimator import ModeKeys as ModeKeys
    from stratagem.classic.estimator import RunConfig as RunConfig
    from stratagem.classic.estimator import TrainSpec as TrainSpec
    from stratagem.classic.estimator import train_and_evaluate as train_and_evaluate
    from stratagem.cluster import ClusterConfig as ClusterConfig
    from stratagem.cluster import ClusterSpec as ClusterSpec
    from stratagem.cluster import resolve_cluster as resolve_cluster
    from stratagem.devices import DeviceSpec as DeviceSpec
    from stratagem.devices import FixedShards as FixedShards
    from stratagem.devices import GreedyLoadBalancing as GreedyLoadBalancing
    from stratagem.devices import LocalDevice as LocalDevice
    from stratagem.devices import MaxSizeShards as MaxSizeShards
    from stratagem.devices import MinSizeShards as MinSizeShards
    from stratagem.devices import RoundRobin as RoundRobin
    from stratagem.devices import byte_size as byte_size
    from stratagem.devices import configure as configure
    from stratagem.devices import device as device
    from stratagem.devices import list_devices as list_devices
    from stratagem.devices import replica_device_setter as replica_device_setter
    from stratagem.errors import AuthenticationError as AuthenticationError
    from stratagem.errors import ClosureCancelled as ClosureCancelled
    from stratagem.errors import ClusterError as ClusterError
    from stratagem.errors import ConfigurationError as ConfigurationError
    from stratagem.errors import DataError as DataError
    from stratagem.errors import DeadlineExceeded as DeadlineExceeded
    from stratagem.errors import DeviceError as DeviceError
    from stratagem.errors import DeviceNotFoundError as DeviceNotFoundError
    from stratagem.errors import DeviceSpecError as DeviceSpecError
    from stratagem.errors import KeepError as KeepError
    from stratagem.errors import LaunchError as LaunchError
    from stratagem.errors import LimitExceeded as LimitExceeded
    from stratagem.errors import MissingExtra as MissingExtra
    from stratagem.errors import ProgramRefused as ProgramRefused
    from stratagem.errors import ProtocolError as ProtocolError
    from stratagem.errors import RemoteCallError as RemoteCallError
    from stratagem.errors import RemoteError as RemoteError
    from stratagem.errors import StratagemError as StratagemError
    from stratagem.errors import StrategyError as StrategyError
    from stratagem.errors import TaskLost as TaskLost
    from stratagem.errors import TaskReplaced as TaskReplaced
    from stratagem.errors import TaskUnreachable as TaskUnreachable
    from stratagem.errors import UnknownCall as UnknownCall
    from stratagem.errors import VariableMismatch as VariableMismatch
    from stratagem.errors import VariableNotFound as VariableNotFound
    from stratagem.errors import WorkerLost as WorkerLost
    from stratagem.parameters.rules import Async as Async
    from stratagem.parameters.rules import BoundedStaleness as BoundedStaleness
    from stratagem.parameters.rules import Sync as Sync
    from stratagem.runtime import TLS as TLS
    from stratagem.runtime import RemoteFunction as RemoteFunction
    from stratagem.runtime import RemoteVariable as RemoteVariable
    from stratagem.runtime import Server as Server
    from stratagem.runtime import Session as Session
    from stratagem.strategies import CentralStorageStrategy as CentralStorageStrategy
    from stratagem.strategies import InputContext as InputContext
    from stratagem.strategies import MirroredStrategy as MirroredStrategy
    from stratagem.strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from stratagem.strategies import OneDeviceStrategy as OneDeviceStrategy
    from stratagem.strategies import ParameterServerStrategy as ParameterServerStrategy
    from stratagem.strategies import PerReplica as PerReplica
    from stratagem.strategies import Strategy as Strategy
    from stratagem.strategies import TPUStrategy as TPUStrategy
    from stratagem.tables import Table as Table
    from stratagem.training import Progress as Progress
    from stratagem.training import SummaryWriter as SummaryWriter
    from stratagem.training import progress as progress
    from stratagem.training.checkpoints import Checkpointer as Checkpointer
    from stratagem.waist import ExponentialMovingAverage as ExponentialMovingAverage
    from stratagem.waist import TrainState as TrainState
    from stratagem.waist import average_gradients as average_gradients

__version__ = "0.1.0"

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Async": "stratagem.parameters.rules",
    "AuthenticationError": "stratagem.errors",
    "BoundedStaleness": "stratagem.parameters.rules",
    "CentralStorageStrategy": "stratagem.strategies",
    "Checkpointer": "stratagem.training.checkpoints",
    "ClosureCancelled": "stratagem.errors",
    "ClusterConfig": "stratagem.cluster",
    "ClusterCoordinator": "stratagem.classic.coordinator",
    "ClusterError": "stratagem.errors",
    "ClusterSpec": "stratagem.cluster",
    "ConfigurationError": "stratagem.errors",
    "DNNClassifier": "stratagem.classic.estimator",
    "DataError": "stratagem.errors",
    "DeadlineExceeded": "stratagem.errors",
    "DeviceError": "stratagem.errors",
    "DeviceNotFoundError": "stratagem.errors",
    "DeviceSpec": "stratagem.devices",
    "DeviceSpecError": "stratagem.errors",
    "Estimator": "stratagem.classic.estimator",
    "EstimatorSpec": "stratagem.classic.estimator",
    "EvalSpec": "stratagem.classic.estimator",
    "ExponentialMovingAverage": "stratagem.waist",
    "FixedShards": "stratagem.devices",
    "GreedyLoadBalancing": "stratagem.devices",
    "InputContext": "stratagem.strategies",
    "KeepError": "stratagem.errors",
    "LaunchError": "stratagem.errors",
    "LimitExceeded": "stratagem.errors",
    "LinearRegressor": "stratagem.classic.estimator",
    "LocalDevice": "stratagem.devices",
    "MaxSizeShards": "stratagem.devices",
    "MinSizeShards": "stratagem.devices",
    "MirroredStrategy": "stratagem.strategies",
    "MissingExtra": "stratagem.errors",
    "ModeKeys": "stratagem.classic.estimator",
    "MultiWorkerMirroredStrategy": "stratagem.strategies",
    "OneDeviceStrategy": "stratagem.strategies",
    "ParameterServerStrategy": "stratagem.strategies",
    "PerReplica": "stratagem.strategies",
    "PerWorkerDataset": "stratagem.classic.coordinator",
    "ProgramRefused": "stratagem.errors",
    "Progress": "stratagem.training",
    "ProtocolError": "stratagem.errors",
    "RemoteCallError": "stratagem.errors",
    "RemoteError": "stratagem.errors",
    "RemoteFunction": "stratagem.runtime",
    "RemoteValue": "stratagem.classic.coordinator",
    "RemoteVariable": "stratagem.runtime",
    "RoundRobin": "stratagem.devices",
    "RunConfig": "stratagem.classic.estimator",
    "Server": "stratagem.runtime",
    "Session": "stratagem.runtime",
    "StratagemError": "stratagem.errors",
    "Strategy": "stratagem.strategies",
    "StrategyError": "stratagem.errors",
    "SummaryWriter": "stratagem.training",
    "Sync": "stratagem.parameters.rules",
    "TLS": "stratagem.runtime",
    "TPUStrategy": "stratagem.strategies",
    "TaskLost": "stratagem.errors",
    "TaskReplaced": "stratagem.errors",
    "TaskUnreachable": "stratagem.errors",
    "TrainSpec": "stratagem.classic.estimator",
    "Table": "stratagem.tables",
    "TrainState": "stratagem.waist",
    "UnknownCall": "stratagem.errors",
    "VariableMismatch": "stratagem.errors",
    "VariableNotFound": "stratagem.errors",
    "WorkerLost": "stratagem.errors",
    "average_gradients": "stratagem.waist",
    "byte_size": "stratagem.devices",
    "configure": "stratagem.devices",
    "data": "stratagem.data",
    "deploy": "stratagem.classic.deploy",
    "device": "stratagem.devices",
    "estimator": "stratagem.classic.estimator",
    "flax": "stratagem.flax",
    "keras": "stratagem.keras",
    "list_devices": "stratagem.devices",
    "on_device": "stratagem.classic.deploy",
    "progress": "stratagem.training",
    "replica_device_setter": "stratagem.devices",
    "resolve_cluster": "stratagem.cluster",
    "train_and_evaluate": "stratagem.classic.estimator",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
