"""`Pipeline`: batches that can be passed over again and again, and gone on with in the middle."""

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from stratagem.data.batch_position import BatchPosition, Plain

Draw = Callable[[BatchPosition], Generator[Any, None, None]]


class Pipeline:
    """Batches; `pipeline` makes it.

    Each iteration is a new pass, shuffled anew; the first one after `restore` goes on where the state was taken.
    Threads and processes that read ahead end with the iteration: when it is exhausted, left or forgotten.

    Args:
        draw: Draws the rest of a pass from a position on.
        made_of: What the batches are made of; a state of other ones is not restored.
        batches_per_epoch: How many there are, if that is known.
        batches_per_pass: How many a pass has, if that is known.

    Attributes:
        batches_per_epoch: How many batches one time over the source gives this worker, if that is known.
        batches_per_pass: How many all `epochs` of a pass give, if that is known.
        is_endless: Whether a pass has no end: `epochs=None`.
    """

    def __init__(
        self,
        draw: Draw,
        made_of: Mapping[str, Plain],
        batches_per_epoch: int | None,
        batches_per_pass: int | None,
    ) -> None:
        self._draw = draw
        self._made_of = dict(made_of)
        self.batches_per_epoch = batches_per_epoch
        self.batches_per_pass = batches_per_pass
        self.is_endless = made_of["epochs"] is None
        self._position = BatchPosition()
        self._is_restored = False

    def __iter__(self) -> Iterator[Any]:
        begun = self._position
        if not self._is_restored and begun.batches:  # the last pass was left in the middle
            begun = BatchPosition(begun.passes + 1)
        self._is_restored = False
        self._position = begun
        return self._passing(begun)

    def _passing(self, begun: BatchPosition) -> Generator[Any, None, None]:
        taken = begun.batches
        drawn = self._draw(begun)
        try:
            for batch in drawn:
                taken += 1
                self._position = BatchPosition(begun.passes, taken)
                yield batch
            self._position = BatchPosition(begun.passes + 1)
        finally:
            drawn.close()

    def state(self, taken: int | None = None) -> dict[str, Plain]:
        """Where the latest iteration stands, as plain values: numbers and strings.

        Args:
            taken: How many batches have been trained on since the very beginning, over all passes, where that is
                known better than by what was handed out. `strategy.distribute` draws a batch ahead for devices with
                a memory of their own: under it, give the number of steps.
        """
        if taken is None:
            return self._position.state(self._made_of)
        if not self.batches_per_pass:
            return BatchPosition(0, taken).state(self._made_of)
        return BatchPosition(*divmod(taken, self.batches_per_pass)).state(self._made_of)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin with the batch after those that the state tells of.

        Raises:
            DataError: The state is of batches that are made of something else: another size, seed, source,
                or number of shards.
        """
        self._position = BatchPosition.restored(state, self._made_of)
        self._is_restored = True
