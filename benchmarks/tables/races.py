"""The races: at several sizes of a table, and as one quantity at a time grows."""

from collections.abc import Sequence

import numpy as np

from benchmarks.parameter_servers.running import Job
from benchmarks.racing.races import FREE, TRIED, Comparison, Race
from benchmarks.tables.work import BATCHES, EXAMPLES, TableWork

WORKERS = 2
TENSORFLOW, TORCH, BOUNDED, ANY_IDS = "TensorFlow", "PyTorch DDP", "rows=n", "rows=None"
ONE, MANY, GROWTH = "one table, 8 ids", "26 tables, 1 id each", "growth"
MANY_SIZES = tuple(round(each) for each in np.geomspace(1e3, 1e6, 26).tolist())
USUAL_ROWS = 10**6
LEAST, HOPED = 3.0, 5.0
"""How many times as fast as TensorFlow ours have to be, and should be."""
LEAST_OF_ANY = 0.7
"""How fast any ids have to be, next to a given number of rows."""
_ENOUGH = 500 * BATCHES * EXAMPLES * 8 * 0.9
"""From so many rows on, fresh ids do not run out."""
_LARGE = 5 * 10**7
"""From so many rows on there is room for one such table of TensorFlow's only: it does not try numbers of threads."""

Entry = tuple[str, Race, TableWork]


def races(rows: Sequence[int]) -> list[Entry]:
    """Return the races with one table of these numbers of rows, with many tables, and of growth: model, race, work."""
    found = []
    for size in rows:
        for draw in ("seen before", "fresh") if size >= _ENOUGH else ("seen before",):
            work = TableWork((size,), 8, draw)
            threads = TRIED if size < _LARGE else FREE
            # DDP adds up sparse gradients the longer, the more there are; of fresh ids it has nothing else to show.
            peers = (_tensorflow(threads), *([_torch(threads)] if draw == "seen before" else []))
            found.append((ONE, _race(ONE, f"{size:,} rows, ids {draw}", peers), work))
    many = _race(MANY, "Zipf", (_tensorflow(TRIED), _torch(TRIED)), has_any=False)
    return [*found, (MANY, many, TableWork(MANY_SIZES, 1, "Zipf")), *_growth()]


def _growth() -> list[Entry]:
    """Return races in which one quantity at a time grows, and all others are as usual."""
    usual = TableWork((USUAL_ROWS,), 8, "seen before")
    entries = [
        (f"{ids} ids per example", TableWork((USUAL_ROWS,), ids, "seen before"), WORKERS, 1)
        for ids in (1, 2, 8, 32, 128)
    ]
    entries += [
        (f"{tables} tables", TableWork((USUAL_ROWS // tables,) * tables, 1, "seen before"), WORKERS, 1)
        for tables in (1, 4, 16, 64)
    ]
    entries += [(f"{servers} servers", usual, WORKERS, servers) for servers in (1, 2, 4)]
    entries += [(f"{workers} workers", usual, workers, 1) for workers in (1, 2, 4)]
    return [
        (
            GROWTH,
            _race(
                GROWTH, name, () if servers > 1 else (_tensorflow(FREE, workers),), False, workers, servers
            ),
            work,
        )
        for name, work, workers, servers in entries
    ]


def _tensorflow(threads: tuple[int | None, ...], workers: int = WORKERS) -> Job:
    return Job(TENSORFLOW, "tensorflow_tables", "embeddings", workers, threads, "with a server")


def _torch(threads: tuple[int | None, ...]) -> Job:
    return Job(TORCH, "torch_ddp", "embedding_bags", WORKERS, threads, "in step")


def _race(
    model: str,
    name: str,
    peers: tuple[Job, ...],
    has_any: bool = True,
    workers: int = WORKERS,
    servers: int = 1,
) -> Race:
    ours = [Job(BOUNDED, "stratagem_tables", "bounded", workers, servers=servers)]
    if has_any:
        ours.append(Job(ANY_IDS, "stratagem_tables", "any_ids", workers, servers=servers))
    is_judged = model != GROWTH
    targets = {TENSORFLOW: ({model: LEAST}, {model: HOPED})} if is_judged else {}
    comparisons = [
        Comparison(each.name, peer.name, *targets.get(peer.name, ())) for peer in peers for each in ours
    ]
    if has_any:
        comparisons.append(Comparison(ANY_IDS, BOUNDED, {model: LEAST_OF_ANY}))
    return Race(name, 1, 1, (*peers, *ours), tuple(comparisons))
