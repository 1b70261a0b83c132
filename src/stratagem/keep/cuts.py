"""All the cuts of a run, in one directory: finding, finishing and removing them.

A cut is a directory `step-000000000123` with shards (`ps-0.safetensors`, …), each written by one process, and a
`manifest.json`, written last: without it the cut is unfinished, and never read.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import PathLike
from pathlib import Path

from stratagem.errors import KeepError
from stratagem.keep.cut import Cut
from stratagem.keep.disk import explained, make_directory, new_file, sync_directory, write_all
from stratagem.keep.manifest import Manifest, check_step
from stratagem.keep.naming import MANIFEST, PARTIAL_SUFFIX, is_ours, step_directory, step_of
from stratagem.keep.retention import kept

_log = logging.getLogger("stratagem")


class Cuts:
    """The cuts under one directory. Steps only grow: to go on from an older cut, `rewind` to it.

    Args:
        root: The directory; made when the first cut is.
        durable: Whether what is finished would survive a loss of power, not only of the process.

    Example:
        >>> import tempfile, numpy
        >>> from stratagem.keep import Manifest, TensorEntry, write_shard
        >>> cuts = Cuts(tempfile.mkdtemp())
        >>> record = write_shard(cuts.directory(100), "ps-0", {"w": numpy.arange(3)})
        >>> cuts.commit(Manifest(100, [record], {"w": TensorEntry.joined([(record, "w")])}))
        >>> cuts.newest_readable().read("w")
        array([0, 1, 2])
    """

    def __init__(self, root: str | PathLike[str], *, durable: bool = True) -> None:
        self.root = Path(root)
        self._durable = durable

    def steps(self) -> list[int]:
        """The steps of all finished cuts, in order; damage is not looked for."""
        return [step for step in self._directories() if self._is_finished(step)]

    def latest(self) -> int | None:
        """The step of the newest finished cut; `None` if there is none."""
        return max(self.steps(), default=None)

    def path(self, step: int) -> Path:
        """The directory of the cut at a step, whether there is one or not."""
        check_step(step)
        return self.root / step_directory(step)

    # -------------------------------------------------------------- writing

    def directory(self, step: int) -> Path:
        """The directory for the shards of a new cut; made if need be. Every writer asks for it.

        Raises:
            KeepError: There is a finished cut of this step or a later one.
        """
        path = self.path(step)
        self._refuse_going_back(step)
        with explained(path, "made"):
            make_directory(path, durable=self._durable)
        return path

    def commit(self, manifest: Manifest) -> None:
        """Finish a cut, once all its shards are written: it is valid from here on.

        Raises:
            KeepError: It cannot be written, or there is a finished cut of this step or a later one.
        """
        path = self.directory(manifest.step) / MANIFEST
        with explained(path, "written"):
            with new_file(path, durable=self._durable) as file:
                write_all(file, memoryview(manifest.to_bytes()))
            if self._durable:
                sync_directory(self.root)

    def _refuse_going_back(self, step: int) -> None:
        latest = self.latest()
        if latest is not None and step <= latest:
            raise KeepError(
                f"{self.root} has a finished cut of step {latest}, so none can be made at step {step}; to go on "
                "from an older cut, rewind to it first, and give each job a directory of its own"
            )

    # -------------------------------------------------------------- reading

    def open(self, step: int, *, check_digests: bool = True) -> Cut:
        """The finished cut at a step.

        Args:
            step: Its step.
            check_digests: Whether a shard is checked before the first tensor is read from it. Without it, a
                few rows of a large shard are read without reading it all, and trusted.

        Raises:
            KeepError: There is none, or its manifest is damaged.
        """
        path = self.path(step) / MANIFEST
        if not self._is_finished(step):
            raise KeepError(f"{path.parent} is no finished cut; there are those of steps {self.steps()}")
        with explained(path, "read"):
            data = path.read_bytes()
        try:
            manifest = Manifest.from_bytes(data)
            if manifest.step != step:
                raise KeepError(
                    f"it is that of step {manifest.step}: directories of cuts must not be renamed"
                )
        except KeepError as error:
            raise KeepError(f"{path} is not as it should be: {error}; use another cut") from error
        return Cut(path.parent, manifest, check_digests=check_digests)

    def readable(self, check: Callable[[Cut], object] = Cut.verify) -> Iterator[Cut]:
        """Finished cuts from the newest to the oldest; damaged ones are skipped, and the log says so.

        Args:
            check: Raises `KeepError` for a cut that cannot be used. By default all digests must be right; where
                shards lie on several hosts, only the caller can know.
        """
        damaged: list[tuple[int, KeepError]] = []
        for step in reversed(self.steps()):
            try:
                cut = self.open(step)
                check(cut)
            except KeepError as error:
                if self._is_finished(step):  # else it was removed meanwhile, as old cuts are
                    damaged.append((step, error))
                continue
            _warn(damaged, f"the cut of step {step} is used instead")
            damaged = []
            yield cut
        _warn(damaged, "and there is no older one that can be read")

    def newest_readable(self, check: Callable[[Cut], object] = Cut.verify) -> Cut | None:
        """The newest cut that is not damaged; `None` if there are no finished cuts at all.

        Args:
            check: As for `readable`.

        Raises:
            KeepError: There are cuts, but every one is damaged.
        """
        while steps := self.steps():
            for cut in self.readable(check):
                return cut
            if self.steps() == steps:  # else others removed and added some: look again
                raise KeepError(
                    f"none of the cuts in {self.root} can be read, of steps {steps}; the log says why of each: "
                    "bring back a copy, or remove them to start anew"
                )
        return None

    # -------------------------------------------------------------- removing

    def prune(self, keep: int, keep_every: int | None = None) -> list[int]:
        """Remove old cuts, and what killed processes have left behind.

        The newest finished cut always stays, and so does everything of later steps, which may be in the making.
        Unfinished cuts of earlier steps go.

        Args:
            keep: How many of the newest cuts stay; at least 1.
            keep_every: Cuts at multiples of this step stay for good.

        Returns:
            The steps removed, for other hosts that have shards of theirs: see `remove`.
        """
        finished = self.steps()
        staying = kept(finished, keep, keep_every)
        if not finished:
            return []
        removed = [step for step in self._directories() if step < finished[-1] and step not in staying]
        for step in removed:
            self.remove(step)
        for step in staying:
            self._remove_files(self.path(step), lambda name: name.endswith(PARTIAL_SUFFIX))
        return removed

    def rewind(self, step: int) -> list[int]:
        """Remove every cut later than `step`, finished, damaged or not, so that the run goes on from there.

        Returns:
            The steps removed.
        """
        check_step(step)
        removed = [later for later in reversed(self._directories()) if later > step]
        for later in removed:
            self.remove(later)
        return removed

    def remove(self, step: int) -> None:
        """Remove the cut at a step, if there is one; files that are not of a cut stay.

        Its manifest goes first: a cut that is half removed is unfinished, not damaged.
        """
        path = self.path(step)
        with explained(path, "removed"):
            if self._is_finished(step):
                with suppress(FileNotFoundError):
                    (path / MANIFEST).unlink()
                    if self._durable:
                        sync_directory(path)
            self._remove_files(path, is_ours)
            with suppress(FileNotFoundError):  # someone else removes it too
                if not any(path.iterdir()):
                    path.rmdir()

    def _remove_files(self, path: Path, chosen: Callable[[str], bool]) -> None:
        with explained(path, "cleared"), suppress(FileNotFoundError):
            for file in list(path.iterdir()):
                if chosen(file.name):
                    file.unlink(missing_ok=True)

    # -------------------------------------------------------------- what is there

    def _directories(self) -> list[int]:
        with explained(self.root, "listed"):
            names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(step for name in names if (step := step_of(name)) is not None)

    def _is_finished(self, step: int) -> bool:
        path = self.path(step) / MANIFEST
        with explained(path, "looked for"):
            return path.is_file()


def _warn(damaged: list[tuple[int, KeepError]], instead: str) -> None:
    for step, error in damaged:
        _log.warning("the cut of step %d is skipped: %s (%s)", step, error, instead)
