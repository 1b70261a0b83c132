"""Batches for the workers of a parameter-server job: shares of each for those in step, else each batch to one."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stratagem.engines.batches import HOW_TO_SHARE, Batches, digest, placed_ahead, with_rows
from stratagem.engines.feeds import Deal
from stratagem.engines.replicas import Replicas
from stratagem.engines.rows import count_rows, share_of, take_rows
from stratagem.engines.server_workers import ServerWorkers
from stratagem.errors import DataError, StrategyError


class ServerFeed:
    """Deals batches out among workers that know of each other by way of servers only.

    Args:
        replicas: The devices of this worker.
        workers: The workers.
    """

    shares_evaluation = False

    def __init__(self, replicas: Replicas, workers: ServerWorkers) -> None:
        self._replicas = replicas
        self._workers = workers
        self.takes_turns = not workers.shares_batches
        self._numbers = itertools.count()

    def share(self, batches: Iterable[Any]) -> Batches:
        """This worker's part of global batches."""
        number = next(self._numbers)

        def parts() -> Iterator[Any]:
            deal = self._deal(number)
            dealt = (deal(batch, rows) for batch in batches if (rows := count_rows(batch)) > 0)
            return (part for part in dealt if part is not None)

        if self._workers.shares_batches:
            return Batches(lambda: placed_ahead(parts(), self._replicas))
        return Batches(lambda: self._then_pause(parts()))

    def deal(self) -> Deal:
        """For workers in step a share of each batch, else batch i to worker i mod W, whole."""
        return self._deal(next(self._numbers))

    def own(self, batches: Iterable[Any]) -> Batches:
        """Batches that are this worker's alone; they may end before or after the others'."""
        return Batches(lambda: self._then_pause(with_rows(batches)))

    def _then_pause(self, batches: Iterable[Any]) -> Iterator[Any]:
        """All of them; when the last has been pushed, nobody waits for this worker until it pushes again."""
        yield from placed_ahead(batches, self._replicas)
        self._pause()

    def rest(self) -> None:
        """See `Feed`; those who share each batch out have none at the same time."""
        if not self._workers.shares_batches:
            self._pause()

    def _pause(self) -> None:
        if self._workers.has_model:
            self._workers.model.client.pause()

    def _deal(self, number: int) -> Callable[..., Any]:
        """Gives this worker's part of a batch, whose rows may have been counted, or `None`."""
        index, count = self._workers.index, self._workers.count
        places = itertools.count()

        def share(batch: Any, rows: int | None = None) -> Any:
            if next(places) == 0 and self._workers.has_model:
                self._check_same(number, batch)
            counted = count_rows(batch) if rows is None else rows
            return take_rows(batch, share_of(counted, index, count))

        def turn(batch: Any, rows: int | None = None) -> Any:
            return batch if next(places) % count == index else None

        return share if self._workers.shares_batches else turn

    def _check_same(self, number: int, batch: Any) -> None:
        try:
            self._workers.model.rendezvous.check_same(number, digest(batch))
        except StrategyError as error:
            raise DataError(f"{error}: {HOW_TO_SHARE}") from error
