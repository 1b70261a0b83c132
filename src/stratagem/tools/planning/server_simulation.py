"""The simulation of workers and parameter servers, as a queue of events: compute, send, wait for a decision, receive.

Every server holds an equal share of the model and gets its share of every push at the same time. So only one is simulated:
server 0, which has most to do, since the others report their shares to it. Messages share its link equally, in each direction
separately; so workers that push together continue together, and may do so for long, as on real networks. Its processor
handles one request at a time.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from stratagem.errors import LaunchError
from stratagem.parameters.rules import UpdateRule
from stratagem.tools.planning.job_profile import JobProfile
from stratagem.tools.planning.rule_models import rule_model
from stratagem.tools.planning.simulation import (
    SERVER_LINK,
    SERVER_UPDATE,
    WORKER_COMPUTE,
    WORKER_LINK,
    BatchMeans,
    Precision,
    SimulationResult,
)
from stratagem.tools.planning.stragglers import Floats

_BLOCK = 8192
"""Random numbers drawn at once."""
_NEVER = float("inf")
_INSTANT = 1e-12
"""Seconds of a message that takes no time: progress is measured relative to it."""


class FairLink:
    """One direction of a host's link, and the messages in it.

    A message is limited by the link of its own sender or receiver, and by its share of this link. All messages have the same
    size and so, at any moment, the same speed: they leave in the order in which they came. Progress is kept once for all of
    them, so neither an arrival nor a departure has to look at the others.

    Args:
        alone: Seconds of a message that is alone in the link.
        share: Seconds that the link itself needs for a message.
    """

    __slots__ = ("_alone", "_messages", "_now", "_progress", "_share", "next_departure")

    def __init__(self, alone: float, share: float) -> None:
        self._alone = max(alone, _INSTANT)
        self._share = share
        self._now = 0.0
        self._progress = 0.0
        self._messages: deque[tuple[float, int]] = deque()
        self.next_departure = _NEVER  # when the next message leaves, if none enters before

    def enter(self, now: float, worker: int) -> None:
        """Let a worker's message enter the link."""
        messages = self._messages
        if messages:
            self._progress += (now - self._now) / max(self._alone, len(messages) * self._share)
        else:
            self._progress = 0.0
        self._now = now
        messages.append((self._progress + 1.0, worker))
        left = max(0.0, messages[0][0] - self._progress)
        self.next_departure = now + left * max(self._alone, len(messages) * self._share)

    def leave(self) -> int:
        """Let the next message leave, and return whose it is."""
        messages = self._messages
        self._now = self.next_departure
        self._progress, worker = messages.popleft()
        if messages:
            left = messages[0][0] - self._progress
            self.next_departure = self._now + left * max(self._alone, len(messages) * self._share)
        else:
            self.next_departure = _NEVER
        return worker


@dataclass(frozen=True)
class Totals:
    """Counts of a `ServerSimulation` at one moment."""

    steps: int  # updates made
    applied: int  # pushes that became part of an update
    dropped: int  # pushes that were dropped
    pushes: Floats  # pushes of each worker
    pushed_at: Floats  # when each worker began its last push
    waited: float  # seconds that workers waited for other workers
    computed: float  # seconds that workers computed
    served: float  # seconds that the server's processor was at work
    replies: int  # parameters sent to a worker
    under_way: float  # seconds from pushes to replies, summed

    def span(self, since: "Totals") -> float:
        """Return the mean time from each worker's last push then to its last push now: whole cycles of the workers.

        Clock time would end within a cycle: where all workers push at the same time, many pushes would fall on one side of
        that end.
        """
        has_pushed = self.pushes > since.pushes
        return float((self.pushed_at - since.pushed_at)[has_pushed].mean()) if has_pushed.any() else 0.0


class ServerSimulation:
    """One job with servers, which can be advanced repeatedly."""

    def __init__(
        self, profile: JobProfile, rule: UpdateRule, workers: int, servers: int, seed: int = 0
    ) -> None:
        if workers < 1 or servers < 1:
            raise LaunchError(f"{workers} workers and {servers} servers: give at least 1 of each")
        self.staleness: Counter[int] = Counter()  # pushes applied at each staleness
        self._profile = profile
        self._workers = workers
        self._servers = servers
        self._overlaps = rule.overlaps
        self._rule = rule_model(rule, workers)
        self._random = np.random.default_rng(seed)
        self._pace = (profile.step_time * profile.stragglers.factors(workers)).tolist()
        self._variations = self._draw_variations()
        self._step = self._applied = self._dropped = 0
        self._waited = self._computed = self._served = self._under_way = 0.0
        self._replies = 0
        self._base = [0] * workers
        self._newest = [0] * workers
        self._waits_since = [0.0] * workers
        self._pushes = [0] * workers
        self._pushed_at = [0.0] * workers
        transfer = profile.transfer_time
        self._to_servers = FairLink(transfer, transfer / servers)
        self._to_workers = FairLink(transfer, transfer / servers)
        self._busy_until = 0.0
        # The other servers report their shares to server 0, and learn its decision.
        self._latency = profile.latency if servers == 1 else 2 * profile.latency
        self._handling = profile.request_time * servers
        self._update = profile.update_per_byte * profile.model_bytes / servers
        self._average = profile.average_per_byte * profile.model_bytes / servers
        self._due_replies: deque[tuple[float, Sequence[int], int]] = deque()
        self._ready = [(pace * next(self._variations), worker) for worker, pace in enumerate(self._pace)]
        heapify(self._ready)

    def _draw_variations(self) -> Iterator[float]:
        while True:
            yield from self._profile.stragglers.draw(self._random, _BLOCK).tolist()

    def advance(self, pushes: int) -> None:
        """Simulate until this number of pushes has arrived."""
        queue, replies = self._ready, self._due_replies
        to_servers, to_workers = self._to_servers, self._to_workers
        begun, counts, newest = self._pushed_at, self._pushes, self._newest
        while pushes:
            # The next event: a push arrives, gradients are ready, replies are sent, a reply arrives.
            ready = queue[0][0] if queue else _NEVER
            reply = replies[0][0] if replies else _NEVER
            others = min(ready, reply, to_workers.next_departure)
            now = to_servers.next_departure
            if now <= others:
                self._take_push(now, to_servers.leave())
                pushes -= 1
            elif ready <= others:
                now, worker = heappop(queue)
                counts[worker] += 1
                begun[worker] = now
                to_servers.enter(now, worker)
            elif reply <= others:
                now, workers, step = replies.popleft()
                for worker in workers:
                    if not self._overlaps:
                        newest[worker] = step
                    to_workers.enter(now, worker)
            else:
                now = to_workers.next_departure
                self._take_reply(now, to_workers.leave())

    def _take_push(self, now: float, worker: int) -> None:
        """Handle a push that has reached all servers, and make the update that it completes, if any."""
        handled = max(self._busy_until, now + self._latency) + self._handling
        self._served += self._handling
        self._busy_until = self._waits_since[worker] = handled
        step, base, waits_since = self._step, self._base, self._waits_since
        pushed = self._rule.complete(worker, base[worker], step)
        if pushed is None:
            self._dropped += 1
            self._due_replies.append((handled, (worker,), step))
            return
        if not pushed:
            return
        count = len(pushed)
        work = self._update + self._average * count if count > 1 else self._update
        self._served += work
        self._busy_until = updated = handled + work
        if count == 1:  # a worker's own update does not count as waiting for others
            handled = waits_since[worker] = updated
        for each in pushed:
            self.staleness[step - base[each]] += 1
        self._step = step + 1
        self._applied += count
        released = self._rule.released(pushed)
        for each in released:
            self._waited += handled - waits_since[each]
        if self._overlaps:  # it computes already, on the parameters that its previous push brought back
            base[worker], self._newest[worker] = self._newest[worker], step + 1
        if released:
            self._due_replies.append((updated, released, step + 1))

    def _take_reply(self, now: float, worker: int) -> None:
        """Let a worker that has new parameters compute and push."""
        received = now + self._latency
        computing = self._pace[worker] * next(self._variations)
        self._replies += 1
        self._under_way += received - self._pushed_at[worker]
        self._computed += computing
        if self._overlaps:
            ready = max(self._pushed_at[worker] + computing, received)
        else:
            self._base[worker] = self._newest[worker]
            ready = received + computing
        heappush(self._ready, (ready + self._profile.worker_overhead, worker))

    def totals(self) -> Totals:
        """Return all counts so far."""
        return Totals(
            self._step,
            self._applied,
            self._dropped,
            np.array(self._pushes, np.float64),
            np.array(self._pushed_at),
            self._waited,
            self._computed,
            self._served,
            self._replies,
            self._under_way,
        )

    def result(self, since: Totals, half_width: float) -> SimulationResult:
        """Return the pace since an earlier moment."""
        now = self.totals()
        span = max(now.span(since), 1e-300)
        applied, dropped = now.applied - since.applied, now.dropped - since.dropped
        decided = max(1, applied + dropped)
        begun = float((now.pushes - since.pushes).sum())
        pushes_per_second = begun / span
        gradients_per_second = pushes_per_second * applied / decided
        # These counts are of pushes that arrived; the span is one of pushes that were begun.
        seconds = decided / pushes_per_second
        total = max(1, self.staleness.total())
        transfer = self._profile.transfer_time
        return SimulationResult(
            updates_per_second=gradients_per_second * (now.steps - since.steps) / max(1, applied),
            gradients_per_second=gradients_per_second,
            mean_staleness=sum(steps * count for steps, count in self.staleness.items()) / total,
            p99_staleness=_percentile(self.staleness, 0.99),
            dropped=dropped / decided,
            waiting=min(1.0, (now.waited - since.waited) / (self._workers * seconds)),
            round_trip=(now.under_way - since.under_way) / max(1, now.replies - since.replies),
            busy={
                WORKER_COMPUTE: min(1.0, (now.computed - since.computed) / (self._workers * seconds)),
                WORKER_LINK: min(1.0, pushes_per_second * transfer / self._workers),
                SERVER_LINK: min(1.0, pushes_per_second * transfer / self._servers),
                SERVER_UPDATE: min(1.0, (now.served - since.served) / seconds),
            },
            half_width=half_width,
            pushes=applied + dropped,
        )


def simulate_servers(
    profile: JobProfile, rule: UpdateRule, workers: int, servers: int, precision: Precision, seed: int = 0
) -> SimulationResult:
    """Return the steady pace of a job with servers."""
    job = ServerSimulation(profile, rule, workers, servers, seed)
    size = precision.batch_size(workers)
    job.advance(size)  # the start, when all workers begin together, is not representative
    job.staleness.clear()
    start = last = job.totals()
    means = BatchMeans()
    pushes = 0
    while not means.is_enough(precision, pushes):
        job.advance(size)
        pushes += size
        now = job.totals()
        span = now.span(last)
        if span:
            means.values.append(float((now.pushes - last.pushes).sum()) / span)
        last = now
    return job.result(start, means.half_width)


def _percentile(counts: Counter[int], share: float) -> int:
    """Return the smallest value that this share of the counts does not exceed."""
    enough, so_far = share * counts.total(), 0
    for value in sorted(counts):
        so_far += counts[value]
        if so_far >= enough:
            return value
    return 0
