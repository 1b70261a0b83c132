"""What a function that makes a worker's own batches is told of its place among the workers."""

from dataclasses import dataclass

from stratagem.errors import StrategyError


@dataclass(frozen=True)
class InputContext:
    """Which of how many input pipelines this is.

    Attributes:
        num_input_pipelines: How many there are: one per worker.
        input_pipeline_id: Which one this is.
        num_replicas_in_sync: How many replicas the global batch is spread over.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """A replica's part of a global batch.

        Raises:
            StrategyError: It does not divide.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise StrategyError(
                f"a global batch of {global_batch_size} does not divide over {self.num_replicas_in_sync} replicas; take "
                f"a multiple of {self.num_replicas_in_sync}"
            )
        return global_batch_size // self.num_replicas_in_sync
