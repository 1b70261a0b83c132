"""`SummaryWriter`: how a training goes, for TensorBoard. Every worker calls it, one writes."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from stratagem.cluster import ClusterSpec
from stratagem.errors import DataError
from stratagem.training.event_file import EventFile
from stratagem.training.histograms import Histogram, histogram_of, histogram_of_counts
from stratagem.training.one_voice import HasChief, own_label, speaks
from stratagem.training.pictures import pictures
from stratagem.training.png import png
from stratagem.training.server_figures import server_figures
from stratagem.training.standing import Status
from stratagem.training.tables import HasDevice, cluster_table, placement_table

STALENESS_WINDOW = 100
"""A histogram of staleness is of so many steps."""


class SummaryWriter:
    """Writes TensorBoard's event files; needs the extra `tensorboard`.

    The same script may run on every worker: the chief writes (and the evaluator, which is best given a directory
    of its own), on all others each call does nothing, and looks at nothing that it is given. What a call has
    written is in the file when it returns.

    Args:
        directory: Where to write; made if it is not there.
        strategy: Tells who is chief; without it flags and the environment do.
        each_worker: Every worker writes, to a directory of its own in `directory`, such as `worker-1`: TensorBoard
            shows each as a run, so that their speed and staleness can be compared.
        resumed_at: The step at which a training that was begun earlier goes on: what was written of later steps
            is forgotten.

    Example:
        >>> with SummaryWriter("logs") as writer:
        ...     writer.scalar("loss", 0.5, step=1)
        ...     writer.histogram("w", [0.1, 0.2, 0.3], step=1)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        strategy: HasChief | None = None,
        *,
        each_worker: bool = False,
        resumed_at: int | None = None,
    ) -> None:
        place = Path(directory)
        label = own_label() if each_worker else None
        self._file: EventFile | None = None
        if each_worker or speaks(strategy):
            self._file = EventFile(place if label is None else place / label, resumed_at)
        self._staleness: Counter[int] = Counter()
        self._staleness_step = 0
        self._status: Status | None = None

    # One at a time.

    def scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number.

        Args:
            name: What it is; names with a `/` are grouped by what stands before it.
            value: A number, or an array of one.
            step: When it was so.
        """
        if self._file is not None:
            self._file.scalar(name, _number(name, value), int(step))

    def histogram(self, name: str, values: Any, step: int) -> None:
        """Write how the values of an array are spread.

        Those that are infinite or no numbers are left out and counted, as the scalar `NAME/not_finite`.
        """
        if self._file is not None:
            self._spread(self._file, name, histogram_of(values), int(step))

    def histograms(self, name: str, tree: Any, step: int) -> None:
        """Write a histogram of every leaf of a pytree, such as parameters or gradients.

        Args:
            name: What they are; the leaf `tree["dense"]["w"]` is written as `NAME/dense/w`.
            tree: Any pytree of arrays.
            step: When they were so.
        """
        if self._file is None:
            return
        import jax

        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            place = jax.tree_util.keystr(path, simple=True, separator="/")
            self.histogram(f"{name}/{place}" if place else name, leaf, step)

    def image(self, name: str, image: Any, step: int, *, max_images: int = 8) -> None:
        """Write an image, or the first of several as `NAME/0`, `NAME/1` and so on.

        Args:
            name: What it shows.
            image: Height and width, with channels (1, 3 or 4) or without, or several such images: integers 0 to
                255, booleans, or floats 0 to 1.
            step: When it was so.
            max_images: How many of several to write.
        """
        if self._file is None:
            return
        found = pictures(image)
        for number, each in enumerate(found[:max_images]):
            label = name if len(found) == 1 else f"{name}/{number}"
            self._file.image(label, png(each), each.shape, int(step))

    def text(self, name: str, text: str, step: int = 0) -> None:
        """Write a text; TensorBoard reads it as Markdown."""
        if self._file is not None:
            self._file.text(name, str(text), int(step))

    # All of something.

    def training(
        self,
        metrics: Mapping[str, Any],
        step: int | None = None,
        *,
        examples_per_second: float | Mapping[str, float] | None = None,
    ) -> None:
        """Write what a training step tells, each metric as the scalar `training/NAME`.

        The staleness under parameter servers is also written as a histogram of every 100 steps told of.

        Args:
            metrics: What the step returned.
            step: Which step it was; `metrics["global_step"]` if it is left out.
            examples_per_second: How fast it goes, in all or by worker, as `speed/examples_per_second`.

        Example:
            >>> for batch in strategy.distribute(batches):
            ...     state, metrics = step(state, batch)
            ...     writer.training(metrics, state.step)
        """
        if self._file is None:
            return
        if step is None:
            if "global_step" not in metrics:
                raise DataError(
                    f"metrics of no step: they tell of {', '.join(metrics) or 'nothing'}, not of a global_step as "
                    "under parameter servers; give step="
                )
            step = metrics["global_step"]
        now = int(step)
        for name, value in metrics.items():
            if np.size(value) == 1:
                self.scalar(f"training/{name}", value, now)
            else:
                self.histogram(f"training/{name}", value, now)
        if metrics.get("staleness") is not None:
            self._staleness[int(metrics["staleness"])] += 1
            self._staleness_step = now
            if self._staleness.total() >= STALENESS_WINDOW:
                self._tell_staleness(self._file)
        if isinstance(examples_per_second, Mapping):
            for worker, speed in examples_per_second.items():
                self.scalar(f"speed/examples_per_second/{worker.strip('/')}", speed, now)
        elif examples_per_second is not None:
            self.scalar("speed/examples_per_second", examples_per_second, now)

    def status(self, status: Status, step: int) -> None:
        """Write what the tasks of a cluster tell of themselves.

        That is how stale the pushes of all workers were since the last call, how many were dropped, how fast each worker
        is, and updates, calls and bytes per second.

        Args:
            status: What `strategy.status()` or `session.status()` returned.
            step: When it was so.
        """
        if self._file is None:
            return
        figures = server_figures(status, self._status)
        self._status = status
        for name, value in figures.scalars.items():
            self.scalar(name, value, step)
        for name, spread in figures.histograms.items():
            self._spread(self._file, name, spread, int(step))

    def cluster(self, cluster: ClusterSpec | Mapping[str, Any], step: int = 0) -> None:
        """Write the cluster's tasks and their addresses, as a text."""
        if self._file is not None:
            self.text("cluster", cluster_table(ClusterSpec(cluster)), step)

    def placement(self, placement: Mapping[str, Any] | Iterable[HasDevice], step: int = 0) -> None:
        """Write which device holds which variable, as a text.

        Args:
            placement: What `strategy.placement(state)` returned: devices by the variables' names; or variables with
                `.name` and `.device`.
            step: When it was so.
        """
        if self._file is not None:
            self.text("placement", placement_table(placement), step)

    # Life.

    def flush(self) -> None:
        """Wait until the disk has all of it."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._file is not None:
            if self._staleness:
                self._tell_staleness(self._file)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell_staleness(self, file: EventFile) -> None:
        spread = histogram_of_counts(self._staleness)
        self._spread(file, "training/staleness_histogram", spread, self._staleness_step)
        self._staleness.clear()

    def _spread(self, file: EventFile, name: str, spread: Histogram, step: int) -> None:
        if spread.counts:
            file.histogram(name, spread, step)
        if spread.not_finite:
            file.scalar(f"{name}/not_finite", spread.not_finite, step)


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    try:
        return float(array.reshape(()) if array.size == 1 else array)
    except (TypeError, ValueError):
        raise DataError(
            f"scalar {name!r} is {value!r}; give one number, or use histogram for several"
        ) from None
