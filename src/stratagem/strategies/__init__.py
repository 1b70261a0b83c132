"""Strategies: which devices and processes train a model, and how their gradients become one update.

Names are loaded when first used: who trains on one device does not import what parameter servers need. A map:

    base                                   what all strategies offer
    one_device, mirrored, central_storage  in one process
    multi_worker, tpu                      in several processes, in step
    parameter_server                       in several processes, with the variables on servers
    input_context                          for which worker a function makes batches
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.engines.per_replica import PerReplica as PerReplica
    from stratagem.strategies.base import Strategy as Strategy
    from stratagem.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
    from stratagem.strategies.input_context import InputContext as InputContext
    from stratagem.strategies.mirrored import MirroredStrategy as MirroredStrategy
    from stratagem.strategies.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
    from stratagem.strategies.one_device import OneDeviceStrategy as OneDeviceStrategy
    from stratagem.strategies.parameter_server import ParameterServerStrategy as ParameterServerStrategy
    from stratagem.strategies.tpu import TPUStrategy as TPUStrategy

# The same list as above, for the interpreter.
_HOMES = {
    "Strategy": "stratagem.strategies.base",
    "CentralStorageStrategy": "stratagem.strategies.central_storage",
    "InputContext": "stratagem.strategies.input_context",
    "MirroredStrategy": "stratagem.strategies.mirrored",
    "MultiWorkerMirroredStrategy": "stratagem.strategies.multi_worker",
    "OneDeviceStrategy": "stratagem.strategies.one_device",
    "ParameterServerStrategy": "stratagem.strategies.parameter_server",
    "PerReplica": "stratagem.engines.per_replica",
    "TPUStrategy": "stratagem.strategies.tpu",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
