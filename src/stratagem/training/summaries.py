"""`SummaryWriter`: summaries of a training for TensorBoard. Every worker calls it, and one writes."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from stratagem.cluster import ClusterSpec
from stratagem.errors import DataError
from stratagem.training.cluster_status import Status, status_figures
from stratagem.training.event_file import EventFile
from stratagem.training.reporter import HasChief, is_reporter, task_label
from stratagem.training.summary_values import (
    HasDevice,
    Histogram,
    as_images,
    cluster_table,
    histogram_of,
    histogram_of_counts,
    placement_table,
)

STALENESS_WINDOW = 100
"""The number of steps in one histogram of staleness."""


class SummaryWriter:
    """Writes TensorBoard's event files; needs the extra `tensorboard`.

    The same script may run on every worker: the chief writes, and the evaluator, which should get a directory of its
    own. On all other tasks, a call does nothing and does not read its arguments. When a call returns, its values are
    in the file.

    Args:
        directory: Where to write; it is made if it does not exist.
        strategy: Says who is chief. By default, flags and the environment do.
        each_worker: Whether every worker writes, to a directory of its own in `directory`, such as `worker-1`:
            TensorBoard shows each as a run, so that their speed and staleness can be compared.
        resumed_at: The step that a training goes on from: TensorBoard drops earlier values of later steps.

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
        label = task_label() if each_worker else None
        self._file: EventFile | None = None
        if each_worker or is_reporter(strategy):
            self._file = EventFile(Path(directory, label or ""), resumed_at)
        self._staleness: Counter[int] = Counter()
        self._staleness_step = 0
        self._status: Status | None = None

    # One value at a time.

    def scalar(self, name: str, value: Any, step: int) -> None:
        """Write a number.

        Args:
            name: Its name. Names with a `/` are grouped by the part before it.
            value: A number, or an array of one.
            step: The step that it belongs to.
        """
        if self._file is not None:
            self._file.scalar(name, _number(name, value), int(step))

    def histogram(self, name: str, values: Any, step: int) -> None:
        """Write a histogram of the values of an array.

        Infinite values and NaNs are left out; the scalar `NAME/not_finite` counts them.
        """
        if self._file is not None:
            self._write_histogram(self._file, name, histogram_of(values), int(step))

    def histograms(self, name: str, tree: Any, step: int) -> None:
        """Write a histogram of every leaf of a pytree, such as parameters or gradients.

        Args:
            name: A prefix of their names: the leaf `tree["dense"]["w"]` is written as `NAME/dense/w`.
            tree: Any pytree of arrays.
            step: The step that they belong to.
        """
        if self._file is None:
            return
        import jax

        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            leaf_name = jax.tree_util.keystr(path, simple=True, separator="/")
            self.histogram(f"{name}/{leaf_name}" if leaf_name else name, leaf, step)

    def image(self, name: str, image: Any, step: int, *, max_images: int = 8) -> None:
        """Write an image, or the first of several as `NAME/0`, `NAME/1` and so on.

        Args:
            name: Its name.
            image: An array of height and width, with channels (1, 3 or 4) or without, or several such images: integers
                0 to 255, booleans, or floats 0 to 1.
            step: The step that it belongs to.
            max_images: The most images to write.
        """
        if self._file is None:
            return
        images = as_images(image)
        for number, each in enumerate(images[:max_images]):
            self._file.image(name if len(images) == 1 else f"{name}/{number}", each, int(step))

    def text(self, name: str, text: str, step: int = 0) -> None:
        """Write a text, which TensorBoard shows as Markdown."""
        if self._file is not None:
            self._file.text(name, str(text), int(step))

    # Many values at once.

    def training(
        self,
        metrics: Mapping[str, Any],
        step: int | None = None,
        *,
        examples_per_second: float | Mapping[str, float] | None = None,
    ) -> None:
        """Write the metrics of a training step, each as the scalar `training/NAME`.

        The staleness under parameter servers is also written as a histogram, after every 100 steps.

        Args:
            metrics: The metrics that the step returned.
            step: The step. By default, `metrics["global_step"]`.
            examples_per_second: The speed, in all or by worker, written as `speed/examples_per_second`.

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
                    f"the step of these metrics is unknown: they have {', '.join(metrics) or 'no values'}, but no "
                    "global_step as under parameter servers; give step="
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
                self._write_staleness(self._file)
        if isinstance(examples_per_second, Mapping):
            for worker, speed in examples_per_second.items():
                self.scalar(f"speed/examples_per_second/{worker.strip('/')}", speed, now)
        elif examples_per_second is not None:
            self.scalar("speed/examples_per_second", examples_per_second, now)

    def status(self, status: Status, step: int) -> None:
        """Write the status of a cluster's tasks.

        It comprises the staleness of all workers' pushes since the last call, the number of pushes dropped, the speed of
        each worker, and updates, calls and bytes per second.

        Args:
            status: The status that `strategy.status()` or `session.status()` returned.
            step: The step that it belongs to.
        """
        if self._file is None:
            return
        figures = status_figures(status, self._status)
        self._status = status
        for name, value in figures.scalars.items():
            self.scalar(name, value, step)
        for name, histogram in figures.histograms.items():
            self._write_histogram(self._file, name, histogram, int(step))

    def cluster(self, cluster: ClusterSpec | Mapping[str, Any], step: int = 0) -> None:
        """Write a table of the cluster's tasks and their addresses, as a text."""
        if self._file is not None:
            self.text("cluster", cluster_table(ClusterSpec(cluster)), step)

    def placement(self, placement: Mapping[str, Any] | Iterable[HasDevice], step: int = 0) -> None:
        """Write a table of variables and the devices that hold them, as a text.

        Args:
            placement: The placement that `strategy.placement(state)` returned: devices by the variables' names; or
                variables with `.name` and `.device`.
            step: The step that it belongs to.
        """
        if self._file is not None:
            self.text("placement", placement_table(placement), step)

    # Closing.

    def flush(self) -> None:
        """Wait until everything is on disk."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Write the last histogram of staleness, and close the file."""
        if self._file is not None:
            if self._staleness:
                self._write_staleness(self._file)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_staleness(self, file: EventFile) -> None:
        histogram = histogram_of_counts(self._staleness)
        self._write_histogram(file, "training/staleness_histogram", histogram, self._staleness_step)
        self._staleness.clear()

    def _write_histogram(self, file: EventFile, name: str, histogram: Histogram, step: int) -> None:
        if histogram.counts:
            file.histogram(name, histogram, step)
        if histogram.not_finite:
            file.scalar(f"{name}/not_finite", histogram.not_finite, step)


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    try:
        return float(array.reshape(()) if array.size == 1 else array)
    except (TypeError, ValueError):
        raise DataError(
            f"scalar {name!r} is {value!r}; give one number, or use histogram for several"
        ) from None
