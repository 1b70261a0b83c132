"""Workers that sum their gradients every step, without servers: each step is as long as its slowest worker's."""

import math

import numpy as np

from stratagem.tools.planning.confidence import BatchMeans, Effort, batch_size
from stratagem.tools.planning.figures import Figures
from stratagem.tools.planning.simulated import WORKER_COMPUTE, WORKER_LINK, Simulated


def sum_time(figures: Figures, workers: int) -> float:
    """An all-reduce of all gradients.

    A ring sends 2(W − 1) messages one after the other, of a W-th of the model each. A tree (two of them, each for half
    of the model) goes up and down in about log₂ W messages each way, cut into so small parts that they overlap.
    """
    if workers == 1:
        return 0.0
    others = (workers - 1) / workers
    hops = 2 * (workers - 1) if figures.collective == "ring" else 2 * math.ceil(math.log2(workers))
    adding = figures.average_per_byte * figures.model_bytes * others
    return hops * figures.latency + 2 * others * figures.transfer_time + adding


def simulate(figures: Figures, workers: int, effort: Effort, seed: int = 0) -> Simulated:
    """The steady pace of a job without servers."""
    random = np.random.default_rng(seed)
    pace = figures.step_time * figures.stragglers.factors(workers)
    summing = sum_time(figures, workers)
    constant = summing + figures.update_per_byte * figures.model_bytes + figures.worker_overhead
    size = batch_size(effort, workers)
    steps = -(-size // workers)
    means = BatchMeans()
    slowest = computed = 0.0
    done = 0
    while not means.is_enough(effort, done * workers):
        computing = pace * figures.stragglers.draw(random, (steps, workers))
        longest = float(computing.max(axis=1).sum())
        means.values.append(steps * workers / (longest + steps * constant))
        slowest += longest
        computed += float(computing.mean(axis=1).sum())
        done += steps
    span = slowest + done * constant
    return Simulated(
        updates_per_second=done / span,
        gradients_per_second=done * workers / span,
        mean_staleness=0.0,
        p99_staleness=0,
        dropped=0.0,
        waiting=(slowest - computed) / span,
        round_trip=summing,
        busy={
            WORKER_COMPUTE: computed / span,
            WORKER_LINK: done * summing / span,
        },
        half_width=means.half_width,
        pushes=done * workers,
    )
