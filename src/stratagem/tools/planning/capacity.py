"""The plan: every number of workers under every rule, each with as many servers as are worthwhile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stratagem.errors import LaunchError
from stratagem.tools.planning.job_profile import JobProfile
from stratagem.tools.planning.rule_models import AllReduce, PlannedRule, RuleChoice, rule_label
from stratagem.tools.planning.server_simulation import simulate_servers
from stratagem.tools.planning.simulation import ROUGH, Precision, SimulationResult, simulate_all_reduce

GOOD_ENOUGH = 0.05
"""A smaller number of servers may be slower than the best number by this share."""
_NO_GAIN = 0.01
_PATIENCE = 2
"""Doublings without gain after which more servers are not tried."""


@dataclass(frozen=True)
class PlanRow:
    """One number of workers under one rule."""

    workers: int
    rule_name: str  # the name by which the rule was chosen
    rule: PlannedRule
    servers: int  # number of servers, given or found; 0 for all-reduce
    simulated: SimulationResult  # the result of the simulation, without failures
    useful: float  # the share of that pace which failures leave
    examples_per_gradient: int | None  # examples of one gradient; `None` to count none
    single_worker_pace: float  # gradients per second of one worker by itself

    @property
    def label(self) -> str:
        """The name of the rule in tables."""
        return rule_label(self.rule)

    @property
    def updates_per_second(self) -> float:
        """Global steps, failures included."""
        return self.simulated.updates_per_second * self.useful

    @property
    def gradients_per_second(self) -> float:
        """Gradients that became part of an update, failures included."""
        return self.simulated.gradients_per_second * self.useful

    @property
    def examples_per_second(self) -> float | None:
        """Examples that became part of an update; `None` if the batch size is not known."""
        count = self.examples_per_gradient
        return None if count is None else self.gradients_per_second * count

    @property
    def efficiency(self) -> float:
        """The pace of each worker, relative to one worker by itself."""
        return self.gradients_per_second / (self.workers * self.single_worker_pace)


def make_plan(
    profile: JobProfile,
    choices: Sequence[RuleChoice],
    workers: Sequence[int],
    *,
    servers: int | None = None,
    most_servers: int = 64,
    precision: Precision | None = None,
    seed: int = 0,
    report_progress: Callable[[int, str], object] | None = None,
) -> list[PlanRow]:
    """Simulate every number of workers under every rule.

    Args:
        profile: The job and its machines.
        choices: The rules.
        workers: The numbers of workers.
        servers: Number of servers; by default the smallest within 5 % of the best.
        most_servers: The largest number of servers to try.
        precision: How precise the result has to be.
        seed: Seed of the random numbers.
        report_progress: Called with the number of workers and the rule that are simulated next.
    """
    if not choices or not workers:
        raise LaunchError("there is nothing to plan: give at least one rule and one number of workers")
    if wrong := [count for count in workers if count < 1]:
        raise LaunchError(f"{wrong[0]} workers: give 1 or more")
    if servers is not None and servers < 1:
        raise LaunchError(f"{servers} servers: give 1 or more, or leave it out to have the number found")
    if most_servers < 1:
        raise LaunchError(f"at most {most_servers} servers: give 1 or more")
    rows = []
    for count in workers:
        for choice in choices:
            rule = choice.for_workers(count)
            if rule is None:
                continue
            if report_progress is not None:
                report_progress(count, rule_label(rule))
            job = _PlannedJob(profile, choice.name, rule, count, seed)
            rows.append(job.row(job.server_count(servers, most_servers), precision or Precision()))
    return rows


class _PlannedJob:
    """One number of workers under one rule, with any number of servers."""

    def __init__(
        self, profile: JobProfile, rule_name: str, rule: PlannedRule, workers: int, seed: int
    ) -> None:
        self._profile = profile
        self._rule_name = rule_name
        self._rule = rule
        self._workers = workers
        self._seed = seed
        self._paces: dict[int, float] = {}

    def row(self, servers: int, precision: Precision) -> PlanRow:
        """Simulate the job with this number of servers."""
        profile, rule, workers = self._profile, self._rule, self._workers
        if isinstance(rule, AllReduce):
            result = simulate_all_reduce(profile, workers, precision, self._seed)
        else:
            result = simulate_servers(profile, rule, workers, servers, precision, self._seed)
        cycle = workers / result.gradients_per_second
        return PlanRow(
            workers,
            self._rule_name,
            rule,
            servers,
            result,
            profile.failures.useful_share(rule, workers, servers, cycle),
            profile.batch,
            profile.single_worker_pace,
        )

    def server_count(self, servers: int | None, most: int) -> int:
        """Return `servers` if given, else the fewest within 5 % of the best: double while it helps, then bisect."""
        if isinstance(self._rule, AllReduce):
            return 0
        if servers is not None:
            return servers
        tried = [1]
        best, without_gain = self._pace(1), 0
        while tried[-1] * 2 <= most and without_gain < _PATIENCE:
            tried.append(tried[-1] * 2)
            pace = self._pace(tried[-1])
            without_gain = 0 if pace > best * (1 + _NO_GAIN) else without_gain + 1
            best = max(best, pace)
        enough = best * (1 - GOOD_ENOUGH)
        high = next(count for count in tried if self._pace(count) >= enough)
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._pace(middle) >= enough:
                high = middle
            else:
                low = middle
        return high

    def _pace(self, servers: int) -> float:
        if servers not in self._paces:
            self._paces[servers] = self.row(servers, ROUGH).gradients_per_second
        return self._paces[servers]
