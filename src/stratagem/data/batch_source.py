"""What every source of batches has: options, and a position as plain values that a checkpoint can keep."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from stratagem.errors import DataError

Plain: TypeAlias = int | str | bool | None
_SHARD_KEYS = ("shard", "rows", "source")
"""The parts of a recipe that differ between the shards of the same batches."""


class PipelineIndex(Protocol):
    """Tells a worker which input pipeline is its own.

    Attributes:
        num_input_pipelines: The number of pipelines.
        input_pipeline_id: The index of this one.
    """

    num_input_pipelines: int
    input_pipeline_id: int


@dataclass(frozen=True)
class BatchOptions:
    """Options for making batches.

    Attributes:
        batch_size: Rows per batch.
        shuffle_seed: Shuffle with this seed, each epoch differently; `None` keeps the order.
        shard_index: Take each `shard_count`-th row, beginning with this one.
        shard_count: The number of shards.
        epochs: How often a pass goes over the rows; `None` without end.
        drop_remainder: Leave out a last batch of an epoch that is smaller.
        prefetch: How many batches to read ahead.
        threads: How many threads read.
        processes: How many processes read; with 0 the threads are in this one.
    """

    batch_size: int
    shuffle_seed: int | None = None
    shard_index: int = 0
    shard_count: int = 1
    epochs: int | None = 1
    drop_remainder: bool = False
    prefetch: int = 2
    threads: int = 1
    processes: int = 0


@dataclass(frozen=True)
class BatchPosition:
    """A position among batches.

    Attributes:
        passes: How many passes are complete.
        batches: How many batches of the next pass have been drawn.

    Example:
        >>> BatchPosition(1, 5).state({"batch_size": 32})
        {'passes': 1, 'batches': 5, 'batch_size': 32}
    """

    passes: int = 0
    batches: int = 0

    def state(self, recipe: Mapping[str, Plain]) -> dict[str, Plain]:
        """Return the position as plain values, with the recipe of the batches."""
        return {"passes": self.passes, "batches": self.batches, **recipe}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], recipe: Mapping[str, Plain]) -> "BatchPosition":
        """Return the position in a state.

        The state may be of another shard of the same batches: a checkpoint keeps the chief's position, and all workers
        in step are at the same one.

        Raises:
            DataError: It is not such a state, or it is of batches with another recipe.
        """
        try:
            passes, batches = int(state["passes"]), int(state["batches"])
            other = {name: state[name] for name in recipe}
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{state!r} is not the state of a pipeline; give the result of its `state` method"
            ) from None
        is_own = other.get("shard") == recipe.get("shard")
        changed = [
            f"{name} was {other[name]!r} and is {value!r}"
            for name, value in recipe.items()
            if other[name] != value and (is_own or name not in _SHARD_KEYS)
        ]
        if changed:
            raise DataError(
                f"the state is of other batches: {'; '.join(changed)}. Make the pipeline as it was, or begin its "
                "data anew and do not restore it"
            )
        if passes < 0 or batches < 0:
            raise DataError(f"{state!r} has {passes} passes and {batches} batches; neither can be negative")
        return cls(passes, batches)


class BatchSource(ABC):
    """Draws batches from any position on.

    Attributes:
        per_epoch: The number of batches in an epoch, if it is known.
        per_pass: The number of batches in a pass, if it is known and ends.
    """

    per_epoch: int | None = None
    per_pass: int | None = None

    @abstractmethod
    def draw(self, position: BatchPosition) -> Generator[Any, None, None]:
        """Draw the rest of a pass."""
