"""Stratagem: write the model once, train it on one device, on all devices of a machine, or on a cluster.

`import stratagem as sg`. Names are loaded on first use, so that importing the package costs next to nothing and does not
import JAX.
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
    from stratagem.parameters.rules import UpdateRule as UpdateRule
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

# The same list for the interpreter; a test compares the two.
_HOMES = {
    name: module
    for module, names in {
        "stratagem.classic.coordinator": "ClusterCoordinator PerWorkerDataset RemoteValue",
        "stratagem.classic.deploy": "deploy on_device",
        "stratagem.classic.estimator": """
            DNNClassifier Estimator EstimatorSpec EvalSpec LinearRegressor ModeKeys RunConfig
            TrainSpec estimator train_and_evaluate
        """,
        "stratagem.cluster": "ClusterConfig ClusterSpec resolve_cluster",
        "stratagem.data": "data",
        "stratagem.devices": """
            DeviceSpec FixedShards GreedyLoadBalancing LocalDevice MaxSizeShards MinSizeShards
            RoundRobin byte_size configure device list_devices replica_device_setter
        """,
        "stratagem.errors": """
            AuthenticationError ClosureCancelled ClusterError ConfigurationError DataError
            DeadlineExceeded DeviceError DeviceNotFoundError DeviceSpecError KeepError LaunchError
            LimitExceeded MissingExtra ProgramRefused ProtocolError RemoteCallError RemoteError
            StratagemError StrategyError TaskLost TaskReplaced TaskUnreachable UnknownCall
            VariableMismatch VariableNotFound WorkerLost
        """,
        "stratagem.flax": "flax",
        "stratagem.keras": "keras",
        "stratagem.parameters.rules": "Async BoundedStaleness Sync UpdateRule",
        "stratagem.runtime": "RemoteFunction RemoteVariable Server Session TLS",
        "stratagem.strategies": """
            CentralStorageStrategy InputContext MirroredStrategy MultiWorkerMirroredStrategy
            OneDeviceStrategy ParameterServerStrategy PerReplica Strategy TPUStrategy
        """,
        "stratagem.tables": "Table",
        "stratagem.training": "Progress SummaryWriter progress",
        "stratagem.training.checkpoints": "Checkpointer",
        "stratagem.waist": "ExponentialMovingAverage TrainState average_gradients",
    }.items()
    for name in names.split()
}

if not TYPE_CHECKING:  # so that a type checker reports wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
