"""Cuts of one model over all its servers, as server 0 has them made, finished, thinned out and gone back to."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from stratagem.errors import KeepError, RolledBack, StratagemError
from stratagem.keep import Cut, Manifest, ShardRecord, TensorEntry
from stratagem.parameters import protocol
from stratagem.parameters.cutting import KEPT_CUTS, shard_name
from stratagem.parameters.fellows import Fellows
from stratagem.parameters.part import ModelPart
from stratagem.runtime.wire.failures import first_line

_log = logging.getLogger("stratagem")
LONG = 600.0
"""Seconds for a call that may have to wait for a disk."""
Applied = Mapping[int, tuple[str, int]]
"""The newest push of each worker that the values contain: which start of it, and its number."""


class Snapshots:
    """The cuts of one model. A cut is finished only if history has gone on from where it was made.

    Args:
        part: Server 0's own part.
        fellows: All servers.

    Attributes:
        newest: The step of the newest cut, or of what training began with.
    """

    def __init__(self, part: ModelPart, fellows: Fellows) -> None:
        self.newest = 0
        self._part = part
        self._fellows = fellows
        self._at = time.monotonic()
        self._is_under_way = False
        self._history = 0
        # Two locks: whether a cut is due is asked between updates, which must not wait for a disk.
        self._lock = threading.Lock()
        self._committing = threading.Lock()
        servers = len(part.config.servers)
        self._threads = ThreadPoolExecutor(servers, thread_name_prefix="stratagem-snapshots")

    @property
    def are_made(self) -> bool:
        """Whether there is a place for them."""
        return self._part.cuts is not None

    @property
    def are_there(self) -> bool:
        """Whether there is any."""
        return self._part.cuts is not None and self._part.cuts.latest() is not None

    # Making.

    def begin_if_due(self, now: float, step: int) -> bool:
        """Whether it is time for a cut, if updates have got to this step; one that is due counts as begun."""
        with self._lock:
            is_late = now - self._at >= self._part.config.snapshot_secs
            is_due = self.are_made and not self._is_under_way and is_late and step > self.newest
            self._is_under_way = self._is_under_way or is_due
            return is_due

    def finish_later(self, step: int, applied: Applied) -> None:
        """All servers copy their values after this step; finish the cut when they have written them."""
        self._threads.submit(self._finish, step, applied, self._history)

    def make_now(self, step: int, applied: Applied) -> None:
        """A cut of the present values, while no update is made."""
        self._fellows.everywhere(lambda server: self._cut(server, step))
        self._finish(step, applied, self._history, is_needed=True)

    def _cut(self, server: int, step: int) -> None:
        if server == 0:
            self._part.cut_now(step)
        else:
            self._fellows.call(server, protocol.CUT, {"step": step, "now": True}, seconds=LONG)

    def _finish(self, step: int, applied: Applied, history: int, is_needed: bool = False) -> None:
        config, cuts = self._part.config, self._part.kept
        try:
            records = self._fellows.everywhere(lambda server: self._record(server, step))
            tensors = {
                name: TensorEntry.joined([(records[server], key) for server, key in pieces])
                for name, pieces in config.tensors
            }
            meta = {
                "applied": {str(worker): list(told) for worker, told in applied.items()},
                "model": config.name,
            }
            with self._committing:
                if history != self._history:
                    raise RolledBack("the servers have gone on from another step since")
                cuts.commit(Manifest(step, records, tensors, meta))
            _log.info("model %s: a cut of step %d is in %s", config.name, step, cuts.root)
            self._prune()
        except Exception as error:
            _log.warning("model %s: there is no cut of step %d: %s", config.name, step, error)
            if is_needed:
                raise
        finally:
            with self._lock:
                if history == self._history:
                    self._is_under_way = False
                    self._at, self.newest = time.monotonic(), step

    def _record(self, server: int, step: int) -> ShardRecord:
        if server == 0:
            return self._part.written(step, LONG)
        if server not in self._part.config.participants:  # no part in updates, so it does not hear of cuts
            self._cut(server, step)
        answer = self._fellows.call(server, protocol.CUT, {"step": step, "now": False}, seconds=LONG)
        return ShardRecord.from_dict(answer["record"])

    # Going back, and going on from elsewhere.

    def restore(self) -> Cut | None:
        """The newest cut that every server can read, if there is one; all have its values then."""
        if not self.are_there:
            return None
        found = self._part.kept.newest_readable(self._restore_all)
        if found is not None:
            self._part.kept.rewind(found.manifest.step)
        return found

    def _restore_all(self, cut: Cut) -> None:
        def restore(server: int) -> None:
            record = cut.manifest.record(shard_name(server))
            if server == 0:
                self._part.restore(cut.manifest.step, record)
            else:
                fields = {"step": cut.manifest.step, "record": record.to_dict()}
                self._fellows.call(server, protocol.RESTORE, fields)

        for problem in self._fellows.everywhere(_caught(restore)):
            if problem is not None:
                raise problem

    def rewound(self, step: int) -> None:
        """Training goes on from a step: what was to be cut is of the past."""
        self.void()
        with self._lock:
            self.newest, self._at = step, time.monotonic()
            self._is_under_way = False

    def void(self) -> None:
        """Finish no cut that was begun before this."""
        with self._committing, self._lock:
            self._history += 1

    # Removing.

    def forget_from(self, step: int) -> None:
        """Remove all cuts of this step and later ones, of which another history is about to be made."""
        if self.are_made:
            later = [found for found in self._part.kept.steps() if found >= step]
            for found in later:
                self._part.kept.remove(found)
            self._forget_elsewhere(later)

    def _prune(self) -> None:
        """Remove old cuts."""
        try:
            self._forget_elsewhere(self._part.kept.prune(KEPT_CUTS))
        except StratagemError as error:
            _log.warning("model %s: old cuts could not be removed: %s", self._part.config.name, error)

    def _forget_elsewhere(self, steps: list[int]) -> None:
        """The other servers' disks may be their own."""
        for server in range(1, len(self._part.config.servers)):
            self._fellows.call(server, protocol.FORGET, {"steps": steps})

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _caught(act: Callable[[int], None]) -> Callable[[int], KeepError | None]:
    """The same, with errors of what is kept as results: all servers are to try before one is looked at."""

    def caught(server: int) -> KeepError | None:
        try:
            act(server)
        except KeepError as error:
            return KeepError(first_line(error))
        return None

    return caught
