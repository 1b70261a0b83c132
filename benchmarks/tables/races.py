"""Who runs against whom."""

from collections.abc import Sequence

import numpy as np

from benchmarks.parameter_servers.running import Job
from benchmarks.racing.races import FREE, TRIED, Comparison, Race
from benchmarks.tables.work import BATCHES, EXAMPLES, TableWork

WORKERS = 2
TENSORFLOW, BOUNDED, ANY_IDS = "TensorFlow", "rows=n", "rows=None"
ONE, MANY = "one table, 8 ids", "26 tables, 1 id each"
MANY_SIZES = tuple(round(each) for each in np.geomspace(1e3, 1e6, 26).tolist())
_ENOUGH = 500 * BATCHES * EXAMPLES * 8 * 0.9
"""From so many rows on, fresh ids do not run out."""
_LARGE = 5 * 10**7
"""From so many rows on there is room for one such table of TensorFlow's only: it does not try numbers of threads."""


def races(rows: Sequence[int]) -> list[tuple[str, Race, TableWork]]:
    """All races with one table of these numbers of rows, and the one with many tables: model, race, work."""
    found = []
    for size in rows:
        for draw in ("seen before", "fresh") if size >= _ENOUGH else ("seen before",):
            work = TableWork((size,), 8, draw)
            threads = TRIED if size < _LARGE else FREE
            found.append((ONE, _race(f"{size:,} rows, ids {draw}", threads, has_any=True), work))
    many = _race("Zipf", TRIED, has_any=False)
    return [*found, (MANY, many, TableWork(MANY_SIZES, 1, "Zipf"))]


def _race(name: str, threads: tuple[int | None, ...], has_any: bool) -> Race:
    ours = [Job(BOUNDED, "stratagem_tables", "bounded", WORKERS)]
    if has_any:
        ours.append(Job(ANY_IDS, "stratagem_tables", "any_ids", WORKERS))
    theirs = Job(TENSORFLOW, "tensorflow_tables", "embeddings", WORKERS, threads, "with a server")
    comparisons = tuple(Comparison(each.name, TENSORFLOW) for each in ours)
    return Race(name, 1, 1, (theirs, *ours), comparisons)
