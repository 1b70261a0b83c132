"""Workers and parameter servers as a queue of events: compute, send, wait for a decision, be answered.

Every server holds an equal part and gets its part of every push at the same time, so one server is simulated, and that
is server 0, which has most to do: beside its own part, the others tell it of theirs. What goes through its link shares
it equally, each way by itself; so workers that push together go on together, and may stay so for long, as they do on
real networks. Its processor takes one thing after the other.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from stratagem.errors import LaunchError
from stratagem.parameters.rules import Async, UpdateRule
from stratagem.tools.planning.confidence import BatchMeans, Effort, batch_size
from stratagem.tools.planning.deciding import deciding_of
from stratagem.tools.planning.fair_link import FairLink
from stratagem.tools.planning.figures import Figures
from stratagem.tools.planning.simulated import (
    SERVER_LINK,
    SERVER_UPDATE,
    WORKER_COMPUTE,
    WORKER_LINK,
    Simulated,
)
from stratagem.tools.planning.stragglers import Floats

_BLOCK = 8192
"""Random numbers drawn at once."""
_NEVER = float("inf")


@dataclass(frozen=True)
class Totals:
    """Counts of a `Serving` at one moment.

    Attributes:
        steps: Updates made.
        applied: Pushes that they were made of.
        dropped: Pushes that were dropped.
        pushes: Of each worker.
        pushed_at: When each worker began its last push.
        waited: Seconds that workers waited for other workers.
        computed: Seconds that workers computed.
        served: Seconds that the server's processor was at work.
        answers: Times that a worker was given parameters.
        under_way: Seconds from pushes to answers, together.
    """

    steps: int
    applied: int
    dropped: int
    pushes: Floats
    pushed_at: Floats
    waited: float
    computed: float
    served: float
    answers: int
    under_way: float

    def span(self, since: "Totals") -> float:
        """From each worker's last push then to its last one now, on average: whole cycles of theirs.

        The time on the clock would be cut within a cycle; where workers push all at the same time, many pushes would
        fall on one side of the cut.
        """
        came = self.pushes > since.pushes
        return float((self.pushed_at - since.pushed_at)[came].mean()) if came.any() else 0.0


class Serving:
    """One job with servers, which can be let run for a while, again and again.

    Args:
        figures: What is known of the job.
        rule: How pushes become updates.
        workers: How many there are.
        servers: How many there are.
        seed: Of the random numbers.

    Attributes:
        staleness: How many pushes were applied so many steps after the parameters they were computed on.
    """

    def __init__(self, figures: Figures, rule: UpdateRule, workers: int, servers: int, seed: int = 0) -> None:
        if workers < 1 or servers < 1:
            raise LaunchError(f"{workers} workers and {servers} servers: give at least 1 of each")
        self.staleness: Counter[int] = Counter()
        self._figures = figures
        self._workers = workers
        self._servers = servers
        self._overlaps = isinstance(rule, Async) and rule.overlap
        self._deciding = deciding_of(rule, workers)
        self._random = np.random.default_rng(seed)
        self._pace = (figures.step_time * figures.stragglers.factors(workers)).tolist()
        self._drawn = self._draw()
        self._step = self._applied = self._dropped = 0
        self._waited = self._computed = self._served = self._under_way = 0.0
        self._answered = 0
        self._base = [0] * workers
        self._held = [0] * workers
        self._since = [0.0] * workers
        self._pushes = [0] * workers
        self._pushed_at = [0.0] * workers
        transfer = figures.transfer_time
        self._there = FairLink(transfer, transfer / servers)
        self._back = FairLink(transfer, transfer / servers)
        self._processor = 0.0
        # The other servers tell server 0 of their parts, and are told what is decided.
        self._way = figures.latency if servers == 1 else 2 * figures.latency
        self._handling = figures.request_time * servers
        self._update = figures.update_per_byte * figures.model_bytes / servers
        self._average = figures.average_per_byte * figures.model_bytes / servers
        self._answers: deque[tuple[float, Sequence[int], int]] = deque()
        self._ready = [(pace * next(self._drawn), worker) for worker, pace in enumerate(self._pace)]
        heapify(self._ready)

    def _draw(self) -> Iterator[float]:
        while True:
            yield from self._figures.stragglers.draw(self._random, _BLOCK).tolist()

    def advance(self, pushes: int) -> None:
        """Let so many pushes arrive."""
        queue, answers, there, back = self._ready, self._answers, self._there, self._back
        begun, counts, held = self._pushed_at, self._pushes, self._held
        while pushes:
            # What comes next: a push arrives, gradients are ready, answers set out, an answer arrives.
            ready = queue[0][0] if queue else _NEVER
            answered = answers[0][0] if answers else _NEVER
            others = min(ready, answered, back.next_leave)
            now = there.next_leave
            if now <= others:
                self._arrived(now, there.leave())
                pushes -= 1
            elif ready <= others:
                now, worker = heappop(queue)
                counts[worker] += 1
                begun[worker] = now
                there.come(now, worker)
            elif answered <= others:
                now, workers, step = answers.popleft()
                for worker in workers:
                    if not self._overlaps:
                        held[worker] = step
                    back.come(now, worker)
            else:
                now = back.next_leave
                self._received(now, back.leave())

    def _arrived(self, now: float, worker: int) -> None:
        """A push is with all servers: see what becomes of it, and make an update if it is time for one."""
        handled = max(self._processor, now + self._way) + self._handling
        self._served += self._handling
        self._processor = self._since[worker] = handled
        step, base, since = self._step, self._base, self._since
        taken = self._deciding.complete(worker, base[worker], step)
        if taken is None:
            self._dropped += 1
            self._answers.append((handled, (worker,), step))
            return
        if not taken:
            return
        count = len(taken)
        work = self._update + self._average * count if count > 1 else self._update
        self._served += work
        self._processor = made = handled + work
        if count == 1:  # its own update is not what it waits for
            handled = since[worker] = made
        for each in taken:
            self.staleness[step - base[each]] += 1
        self._step = step + 1
        self._applied += count
        go_on = self._deciding.go_on(taken)
        for each in go_on:
            self._waited += handled - since[each]
        if self._overlaps:  # it computes already, on what the push before this one brought back
            base[worker], self._held[worker] = self._held[worker], step + 1
        if go_on:
            self._answers.append((made, go_on, step + 1))

    def _received(self, now: float, worker: int) -> None:
        """A worker has new parameters: let it compute, and push what it has computed."""
        received = now + self._way
        computing = self._pace[worker] * next(self._drawn)
        self._answered += 1
        self._under_way += received - self._pushed_at[worker]
        self._computed += computing
        if self._overlaps:
            ready = max(self._pushed_at[worker] + computing, received)
        else:
            self._base[worker] = self._held[worker]
            ready = received + computing
        heappush(self._ready, (ready + self._figures.worker_overhead, worker))

    def totals(self) -> Totals:
        """All counts so far."""
        return Totals(
            self._step,
            self._applied,
            self._dropped,
            np.array(self._pushes, np.float64),
            np.array(self._pushed_at),
            self._waited,
            self._computed,
            self._served,
            self._answered,
            self._under_way,
        )

    def found(self, since: Totals, half_width: float) -> Simulated:
        """What happened since."""
        now = self.totals()
        span = max(now.span(since), 1e-300)
        applied, dropped = now.applied - since.applied, now.dropped - since.dropped
        decided = max(1, applied + dropped)
        begun = float((now.pushes - since.pushes).sum())
        pushes_per_second = begun / span
        gradients_per_second = pushes_per_second * applied / decided
        # What was counted by arrivals goes by them; the span is one of pushes that were begun.
        seconds = decided / pushes_per_second
        total = max(1, self.staleness.total())
        transfer = self._figures.transfer_time
        return Simulated(
            updates_per_second=gradients_per_second * (now.steps - since.steps) / max(1, applied),
            gradients_per_second=gradients_per_second,
            mean_staleness=sum(steps * count for steps, count in self.staleness.items()) / total,
            p99_staleness=_percentile(self.staleness, 0.99),
            dropped=dropped / decided,
            waiting=min(1.0, (now.waited - since.waited) / (self._workers * seconds)),
            round_trip=(now.under_way - since.under_way) / max(1, now.answers - since.answers),
            busy={
                WORKER_COMPUTE: min(1.0, (now.computed - since.computed) / (self._workers * seconds)),
                WORKER_LINK: min(1.0, pushes_per_second * transfer / self._workers),
                SERVER_LINK: min(1.0, pushes_per_second * transfer / self._servers),
                SERVER_UPDATE: min(1.0, (now.served - since.served) / seconds),
            },
            half_width=half_width,
            pushes=applied + dropped,
        )


def simulate(
    figures: Figures, rule: UpdateRule, workers: int, servers: int, effort: Effort, seed: int = 0
) -> Simulated:
    """The steady pace of a job with servers."""
    job = Serving(figures, rule, workers, servers, seed)
    size = batch_size(effort, workers)
    job.advance(size)  # the start, when all begin at once, is unlike the rest
    job.staleness.clear()
    start = last = job.totals()
    means = BatchMeans()
    pushes = 0
    while not means.is_enough(effort, pushes):
        job.advance(size)
        pushes += size
        now = job.totals()
        span = now.span(last)
        if span:
            means.values.append(float((now.pushes - last.pushes).sum()) / span)
        last = now
    return job.found(start, means.half_width)


def _percentile(counts: Counter[int], share: float) -> int:
    """The smallest value that so large a share does not exceed."""
    wanted, so_far = share * counts.total(), 0
    for value in sorted(counts):
        so_far += counts[value]
        if so_far >= wanted:
            return value
    return 0
