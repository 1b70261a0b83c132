"""Where a pass over batches stands, as plain values that a checkpoint can keep. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stratagem.errors import DataError

Plain = int | str | bool | None
_OF_ONE_SHARD = ("shard", "rows", "source")
"""What differs between the shards of the same batches."""


@dataclass(frozen=True)
class BatchPosition:
    """A place among batches.

    Attributes:
        passes: How many passes have been completed.
        batches: How many batches of the next one have been taken.

    Example:
        >>> BatchPosition(1, 5).state({"batch_size": 32})
        {'passes': 1, 'batches': 5, 'batch_size': 32}
    """

    passes: int = 0
    batches: int = 0

    def state(self, made_of: Mapping[str, Plain]) -> dict[str, Plain]:
        """The place as plain values, with what the batches are made of."""
        return {"passes": self.passes, "batches": self.batches, **made_of}

    @classmethod
    def restored(cls, state: Mapping[str, Any], made_of: Mapping[str, Plain]) -> "BatchPosition":
        """The place that a state tells of.

        It may be of another shard of the same batches: a checkpoint keeps where the chief stands, and of workers in step
        each stands there.

        Raises:
            DataError: It is no such state, or of batches that are made of something else.
        """
        try:
            passes, batches = int(state["passes"]), int(state["batches"])
            other = {name: state[name] for name in made_of}
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{state!r} is no state of a pipeline; give what its `state` method returned"
            ) from None
        is_own = other.get("shard") == made_of.get("shard")
        changed = [
            f"{name} was {other[name]!r} and is {value!r}"
            for name, value in made_of.items()
            if other[name] != value and (is_own or name not in _OF_ONE_SHARD)
        ]
        if changed:
            raise DataError(
                f"the state is of other batches: {'; '.join(changed)}. Make the pipeline as it was, or begin its "
                "data anew and do not restore it"
            )
        if passes < 0 or batches < 0:
            raise DataError(
                f"{state!r} tells of {passes} passes and {batches} batches; neither can be negative"
            )
        return cls(passes, batches)
