"""A cache of compiled programs, so that each program is shipped, walked and compiled once."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

import jax

from stratagem.errors import LimitExceeded
from stratagem.runtime.programs.compiled import CompiledProgram, compile_program
from stratagem.runtime.programs.inspector import Inspector
from stratagem.runtime.programs.summary import ProgramLimits
from stratagem.runtime.programs.verification import content_hash, verify

_Key = tuple[str, tuple[int, ...], jax.Device]


@dataclass(frozen=True)
class CacheStatistics:
    """How a cache was used: programs in it, hits, programs compiled, and programs evicted for others."""

    size: int
    hits: int
    compiled: int
    evicted: int


class ProgramCache:
    """Loads programs by their bytes, and finds loaded programs by their hash.

    Threads that ask for a program while another thread compiles it wait for that thread. A refused program is not remembered:
    it is refused again, for its own reason, when it comes again.

    Example:
        >>> with ProgramCache() as cache:
        ...     program = cache.load(export_program(jnp.sin, 1.0).artifact)
        ...     program([np.float32(0.5)], wait=True)
        [Array(0.47942555, dtype=float32)]

    Args:
        capacity: Most compiled programs to keep; the least recently used is evicted.
        limits: Bounds on each program.
        inspector: Reads programs in its process; by default the cache starts and ends one of its own.
    """

    def __init__(
        self,
        capacity: int = 256,
        limits: ProgramLimits | None = None,
        inspector: Inspector | None = None,
    ) -> None:
        if capacity < 1:
            raise LimitExceeded(f"ProgramCache(capacity={capacity}): the cache must hold one program or more")
        self._capacity = capacity
        self._limits = limits or ProgramLimits()
        self._own_inspector = inspector is None
        self._inspector = inspector or Inspector()
        self._lock = threading.Lock()
        self._ready: OrderedDict[_Key, CompiledProgram] = OrderedDict()
        self._compiling: dict[_Key, Future[CompiledProgram]] = {}
        self._hits = self._compiled = self._evicted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._ready)

    def close(self) -> None:
        """Forget all programs and end the inspector's process."""
        with self._lock:
            self._ready.clear()
        if self._own_inspector:
            self._inspector.close()

    def load(
        self, artifact: bytes, donate: Sequence[int] = (), device: jax.Device | None = None
    ) -> CompiledProgram:
        """Return the compiled program of an artifact.

        Args:
            artifact: The program, as `Program.artifact`.
            donate: Indices of inputs whose memory may become a result's.
            device: A device of this process; the first one if not given.

        Raises:
            ProgramRefused: The program is not allowed, too large, or does not compile; the message says why.
        """
        key = _key(content_hash(artifact), donate, device)
        with self._lock:
            ready = self._touch(key)
            if ready is not None:
                return ready
            pending = self._compiling.get(key)
            if pending is None:
                mine = self._compiling[key] = Future[CompiledProgram]()
        if pending is not None:
            return pending.result()
        try:
            program = self._compile(artifact, key)
        except BaseException as error:
            with self._lock:
                del self._compiling[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._compiling[key]
            self._ready[key] = program
            self._compiled += 1
            while len(self._ready) > self._capacity:
                self._ready.popitem(last=False)
                self._evicted += 1
        mine.set_result(program)
        return program

    def find(
        self, content_hash: str, donate: Sequence[int] = (), device: jax.Device | None = None
    ) -> CompiledProgram | None:
        """Return the compiled program of that hash, if it is here: then it need not be shipped again."""
        key = _key(content_hash, donate, device)
        with self._lock:
            return self._touch(key)

    def has(self, content_hash: str, donate: Sequence[int] = (), device: jax.Device | None = None) -> bool:
        """Return whether `find` would return a program."""
        key = _key(content_hash, donate, device)
        with self._lock:
            return key in self._ready

    def statistics(self) -> CacheStatistics:
        """Return how the cache was used so far."""
        with self._lock:
            return CacheStatistics(len(self._ready), self._hits, self._compiled, self._evicted)

    def _touch(self, key: _Key) -> CompiledProgram | None:
        program = self._ready.get(key)
        if program is not None:
            self._ready.move_to_end(key)
            self._hits += 1
        return program

    def _compile(self, artifact: bytes, key: _Key) -> CompiledProgram:
        _, donate, device = key
        program = verify(artifact, self._limits, platform=platform_of(device), inspector=self._inspector)
        return compile_program(program, device, donate, self._limits.memory_bytes)


def platform_of(device: jax.Device) -> str:
    """Return a device's platform as `jax.export` names it: `gpu` is `cuda` or `rocm` there."""
    if device.platform != "gpu":
        return str(device.platform)
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def _key(content_hash: str, donate: Sequence[int], device: jax.Device | None) -> _Key:
    return content_hash, tuple(sorted(set(donate))), device or jax.local_devices()[0]
