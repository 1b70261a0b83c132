"""When snapshots of a model are due, and which of them may still be committed. Pure."""


class SnapshotSchedule:
    """The snapshots of one model. One is committed only if history has gone on from where it was made.

    Args:
        period: Seconds from one to the next; `None` if none are made.

    Attributes:
        newest: The step of the newest snapshot, or of the values that training began with.
        history: How often history has gone on from elsewhere.
    """

    def __init__(self, period: float | None) -> None:
        self.newest = 0
        self.history = 0
        self._period = period
        self._since: float | None = None
        self._is_under_way = False

    @property
    def are_made(self) -> bool:
        """Whether snapshots are made at all."""
        return self._period is not None

    def begin_if_due(self, now: float, step: int) -> bool:
        """Whether it is time for one, if updates have got to this step; one that is due counts as begun."""
        if self._period is None:
            return False
        self._since = now if self._since is None else self._since
        is_due = not self._is_under_way and now - self._since >= self._period and step > self.newest
        self._is_under_way = self._is_under_way or is_due
        return is_due

    def may_commit(self, history: int) -> bool:
        """Whether a snapshot that was begun in this history may be committed."""
        return history == self.history

    def finished(self, step: int, history: int, now: float, is_written: bool) -> None:
        """A snapshot is committed, or could not be; the next is due a period later."""
        if history == self.history:
            self._is_under_way = False
            self._since = now
            if is_written:
                self.newest = step

    def rewound(self, step: int) -> None:
        """Training goes on from a step; the time to the next snapshot counts from the next tick."""
        self.void()
        self.newest, self._since, self._is_under_way = step, None, False

    def void(self) -> None:
        """Commit no snapshot that was begun before this."""
        self.history += 1
