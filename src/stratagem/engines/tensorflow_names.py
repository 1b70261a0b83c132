"""Arguments that have another name in TensorFlow: whoever gives one is told what it is called here."""

from collections.abc import Mapping
from typing import Any, Final, Self

from stratagem.errors import StrategyError

_FROM_ENVIRONMENT = (
    "cluster=sg.ClusterSpec(…), or nothing: TF_CONFIG, flags and the launcher tell of the cluster"
)
_VISIBLE = "sg.configure(visible_devices=…) before; a worker trains with all the devices that it sees"
_BY_JAX = "nothing: JAX finds the TPUs by itself"
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "MirroredStrategy": {
        "num_gpus": "devices=['/gpu:0', '/gpu:1']",
        "num_gpus_per_worker": "devices=['/gpu:0', '/gpu:1']",
        "cross_device_ops": "nothing: XLA chooses how to sum",
    },
    "MultiWorkerMirroredStrategy": {
        "cluster_resolver": _FROM_ENVIRONMENT,
        "communication_options": "communication='auto', bytes_per_pack=0 and timeout=30, arguments of their own",
        "num_gpus_per_worker": _VISIBLE,
    },
    "CentralStorageStrategy": {"num_gpus": "compute_devices=['/gpu:0', '/gpu:1']"},
    "ParameterServerStrategy": {
        "cluster_resolver": _FROM_ENVIRONMENT,
        "num_gpus_per_worker": "devices_per_worker",
        "variable_partitioner": "partitioner",
    },
    "TPUStrategy": {
        "tpu_cluster_resolver": _BY_JAX,
        "experimental_device_assignment": _BY_JAX,
        "device_assignment": _BY_JAX,
    },
    "RunConfig": {
        "tf_random_seed": "seed",
        "num_gpus_per_worker": "devices_per_worker, which goes to the strategy: "
        "train_distribute=lambda: sg.ParameterServerStrategy(devices_per_worker=2)",
        "experimental_distribute": "train_distribute and eval_distribute",
        "device_fn": "train_distribute, a strategy, which places variables",
        "session_config": "sg.configure(soft_placement=…, log_device_placement=…) before",
    },
}


class RefusesTensorFlowNames:
    """Refuses TensorFlow's names of constructor arguments, and says what to give instead. Python refuses unknown names."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check the names of the arguments, before Python refuses them without advice.

        Raises:
            StrategyError: One of them has another name here.
        """
        names = _NAMES.get(cls.__name__, {})
        for name in kwargs:
            if name in names:
                raise StrategyError(
                    f"{cls.__name__} has no {name}, which is TensorFlow's; here give {names[name]}"
                )
        return super().__new__(cls)
