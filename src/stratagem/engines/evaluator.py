"""What a strategy of several processes is on an evaluator task: this process alone, which looks at what the others train."""

from collections.abc import Sequence

from stratagem.cluster import ClusterConfig, ClusterSpec
from stratagem.cluster.roles import EVALUATOR
from stratagem.engines.chief_files import ChiefFiles
from stratagem.engines.engine import Engine, MirroredEngine, Step
from stratagem.engines.replicas import Replicas
from stratagem.engines.workers import Array, Workers
from stratagem.errors import StrategyError
from stratagem.runtime.peers import task_name
from stratagem.waist import Trainable, TrainState


def is_evaluator(config: ClusterConfig) -> bool:
    """Whether this process is the task that evaluates while others train."""
    return config.job_name == EVALUATOR


def evaluator_parts(config: ClusterConfig, replicas: Replicas) -> tuple[Engine, Workers]:
    """What the strategy is made of there, over the devices of this process."""
    task = task_name(config.job_name, config.task_index)
    return EvaluatorEngine(replicas, task), EvaluatorAlone(config)


class EvaluatorEngine:
    """Variables on every device of this process, to compute with; nothing updates them.

    Args:
        replicas: The devices.
        task: The name of this task.
    """

    is_elsewhere = False

    def __init__(self, replicas: Replicas, task: str) -> None:
        self.replicas = replicas
        self._mirrored = MirroredEngine(replicas)
        self._task = task

    def lay_out(self, state: TrainState) -> TrainState:
        """A copy of everything on every device."""
        return self._mirrored.lay_out(state)

    def build(self, trainable: Trainable) -> Step:
        """Refuses: a model that the evaluator trained would be one of its own.

        Raises:
            StrategyError: Always.
        """
        raise StrategyError(
            f"{self._task} does not train: it evaluates what the chief and the workers train. With an Estimator "
            "call sg.train_and_evaluate, which does each task's part; else train on other tasks only, or start the job "
            "without an evaluator"
        )


class EvaluatorAlone:
    """One process that trains with nobody, and is not the chief of those who do."""

    index = 0
    count = 1
    is_chief = False
    files: ChiefFiles | None = None

    def __init__(self, config: ClusterConfig) -> None:
        self.cluster: ClusterSpec | None = config.cluster

    def gather(self, array: Array) -> Sequence[Array]:
        """Its own array."""
        return [array]

    def close(self) -> None:
        """Nothing to leave."""
