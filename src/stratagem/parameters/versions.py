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

from stratagem.runtime.host_memory import HostViews
from stratagem.runtime.wire import Broadcast, BroadcastBuffers
from stratagem.runtime.wire.arrays import Array

Release: TypeAlias = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Version:
    """Values that are not changed any more.

    Attributes:
        step: Their global step.
        values: All of them.
        leaves: The parameters among them, as the host sees them.
        kept: For each reader over a network, how many of the values it keeps.
    """

    step: int
    values: list[jax.Array]
    leaves: Sequence[Array]
    kept: list[int] = field(default_factory=list)

    def release(self, count: int) -> None:
        """A reader over a network has read so many values, which live as long as this may be called."""
        self.kept.remove(count)


class Versions:
    """The published version, and older ones for as long as they are read.

    Args:
        leaves: How many of the values, the first ones, are parameters, which workers read.
        are_shared: Whether several workers read each version: then those on this host read one copy.
    """

    def __init__(self, leaves: int, are_shared: bool) -> None:
        self._leaves = leaves
        self._views = HostViews()
        self._buffers = BroadcastBuffers() if are_shared else None
        self._newest = _Version(0, [], [])
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._near = 0
        self._replacers = 0
        self._is_replaced = False

    @property
    def step(self) -> int:
        """The global step of the newest version."""
        return self._newest.step

    def read(self, everything: bool, is_far: bool) -> tuple[int, Sequence[Array], Release]:
        """The newest version.

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
                version.kept.append(count)
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
        """Keep readers away while the next version is made; the newest values, whose memory may be reused."""
        with self._lock:
            self._replacers += 1
            while self._is_replaced or self._near:
                self._changed.wait()
            self._is_replaced = True
        try:
            newest = self._newest
            count = max([0, *newest.kept])
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


def copies(values: Sequence[Any], device: jax.Device | None = None) -> list[jax.Array]:
    """Copies of values, in memory of their own, when they are there."""
    if not values:
        return []
    with jax.enable_x64(True):
        arrays = [jnp.array(value, device=device, copy=True) for value in values]
    jax.block_until_ready(arrays)
    return arrays
