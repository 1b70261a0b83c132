"""`InputContext`: which worker a function makes batches for."""

from dataclasses import dataclass

from stratagem.data.batch_source import PipelineIndex
from stratagem.errors import StrategyError


@dataclass(frozen=True)
class InputContext(PipelineIndex):
    """Describes the worker for which a function makes batches.

    Attributes:
        num_input_pipelines: The number of input pipelines: one per worker.
        input_pipeline_id: The number of this one.
        num_replicas_in_sync: The number of replicas that the global batch is spread over.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the number of rows of a global batch that each replica gets.

        Raises:
            StrategyError: The batch does not divide evenly.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise StrategyError(
                f"a global batch of {global_batch_size} does not divide over {self.num_replicas_in_sync} replicas; take "
                f"a multiple of {self.num_replicas_in_sync}"
            )
        return global_batch_size // self.num_replicas_in_sync
