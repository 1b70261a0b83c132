"""One server's values, version by version: who reads one has it as it was, and keeps nobody from making the next.

A reader on this host copies into shared memory, at the speed of memory: an update waits for that, and reuses the memory of
the values that it replaces. A reader over a network takes as long as its link does: it keeps its version, and the update is
made of copies of what it keeps. So there are as many versions as such readers are at, and the newest; never more than one
for each reader.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stratagem.runtime.host_memory import HostViews
from stratagem.runtime.programs import CompiledProgram, TensorSpec
from stratagem.runtime.wire import Broadcast, BroadcastBuffers
from stratagem.runtime.wire.arrays import Array

Release: TypeAlias = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Version:
    """Values that are not changed any more."""

    step: int  # their global step
    values: list[jax.Array]  # all of them
    leaves: Sequence[Array]  # the parameters among them, as the host sees them
    reads: list[int] = field(
        default_factory=list
    )  # for each reader over a network, how many of the values it keeps

    def release(self, count: int) -> None:
        """Let go of the first values, which a reader over a network has read; they live as long as it may call this."""
        self.reads.remove(count)


class Versions:
    """The published version, and older ones for as long as they are read.

    Args:
        leaves: How many of the values, the first ones, are parameters, which workers read.
        are_shared: Whether several workers read each version: then those on this host read one copy.
    """

    def __init__(self, leaves: int, are_shared: bool) -> None:
        self.step = 0  # the global step of the newest version
        self._leaves = leaves
        self._views = HostViews()
        self._buffers = BroadcastBuffers() if are_shared else None
        self._newest = _Version(0, [], [])
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._near = 0
        self._replacers = 0
        self._is_replaced = False

    def read(self, everything: bool, is_far: bool) -> tuple[int, Sequence[Array], Release]:
        """Read the newest version.

        Args:
            everything: Whether all values are wanted, and not the parameters alone.
            is_far: Whether the reader may take long: one over a network.

        Returns:
            Its step; views, which are good until the function that comes last is called, by any thread; and that function.
        """
        with self._lock:
            while self._replacers:  # who makes the next version goes before readers that come later
                self._changed.wait()
            version = self._newest
            count = len(version.values) if everything else self._leaves
            if is_far:
                version.reads.append(count)
            else:
                self._near += 1
        views = self._views.of(version.values) if everything else version.leaves
        return version.step, views, partial(version.release, count) if is_far else self._release_near

    def _release_near(self) -> None:
        with self._lock:
            self._near -= 1
            if not self._near:
                self._changed.notify_all()

    @contextmanager
    def replacing(self) -> Iterator[list[jax.Array]]:
        """Keep readers away while the next version is made; yields the newest values, whose memory may be reused."""
        with self._lock:
            self._replacers += 1
            while self._is_replaced or self._near:
                self._changed.wait()
            self._is_replaced = True
        try:
            newest = self._newest
            count = max([0, *newest.reads])
            yield [*copies(newest.values[:count]), *newest.values[count:]] if count else list(newest.values)
        finally:
            with self._lock:
                self._replacers -= 1
                self._is_replaced = False
                self._changed.notify_all()

    def publish(self, step: int, values: list[jax.Array]) -> None:
        """Let readers have other values from now on; to be called while the former are being replaced."""
        leaves = self._views.of(values[: self._leaves])
        self._newest = _Version(
            step, values, leaves if self._buffers is None else Broadcast(self._buffers, leaves)
        )
        self.step = step  # only now: who sees the step may read its values


def copies(values: Sequence[Any], device: jax.Device | None = None) -> list[jax.Array]:
    """Return copies of values, in memory of their own, when they are there."""
    if not values:
        return []
    with jax.enable_x64(True):
        arrays = [jnp.array(value, device=device, copy=True) for value in values]
    jax.block_until_ready(arrays)
    return arrays


# The update that makes the next version.


class AveragedUpdate:
    """An update of one push as it was shipped, or of several: of the mean of their gradients by rows.

    The mean and the update are one program: gradients are read once, and never kept.

    Args:
        update: The update as it was shipped: values, gradients and what follows them in, values out.
    """

    def __init__(self, update: CompiledProgram, values: int, gradients: int) -> None:
        self._update = update
        self._values = values
        self._gradients = gradients
        self._programs: dict[int, CompiledProgram] = {}

    def __call__(
        self,
        values: Sequence[jax.Array],
        rows: Sequence[int],
        gradients: Sequence[Sequence[Any]],
        others: Sequence[Any],
    ) -> list[jax.Array]:
        """Return the new values, when they are there and nothing is read any more; the old ones are gone then.

        Raises:
            RemoteCallError: It failed while it ran.
        """
        if len(rows) == 1:
            return self._update([*values, *gradients[0], *others], wait=True)
        program = self._programs.get(len(rows))
        if program is None:
            program = self._programs[len(rows)] = self._program(len(rows))
        flat = [each for push in gradients for each in push]
        return program([*values, *flat, *others, weights(rows)], wait=True)

    def _program(self, pushes: int) -> CompiledProgram:
        """Compile the program for this number of pushes."""
        count, first = self._gradients, self._values
        last = first + pushes * count
        values, gradients, others = _sections(self._update.summary.inputs, first, first + count)

        def averaged(*arrays: Any) -> Any:
            values, flat, others = _sections(arrays, first, last)
            lists = [flat[start : start + count] for start in range(0, len(flat), count)]
            return self._update.traceable(*values, *weighted(others[-1], lists), *others[:-1])

        inputs = (*values, *list(gradients) * pushes, *others, TensorSpec((pushes,), "float32"))
        return self._update.derive(
            averaged, inputs, tuple(each for each in self._update.donated if each < first)
        )


def _sections(
    things: Sequence[Any], first: int, last: int
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    return things[:first], things[first:last], things[last:]


def weights(rows: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the weight of each push in the mean."""
    return np.asarray(rows, np.float32) / np.float32(sum(rows))


def weighted(weights: jax.Array, lists: Sequence[Sequence[jax.Array]]) -> list[jax.Array]:
    """Return the mean of gradients, in the order of the pushes; traceable."""

    def mean(*gradients: jax.Array) -> jax.Array:
        wide = jnp.promote_types(gradients[0].dtype, jnp.float32)
        total = gradients[0].astype(wide) * weights[0].astype(wide)
        for index, gradient in enumerate(gradients[1:], start=1):
            total = total + gradient.astype(wide) * weights[index].astype(wide)
        return total.astype(gradients[0].dtype)

    return [mean(*column) for column in zip(*lists, strict=True)]
