"""What workers do in the tests of collectives."""

import hashlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from stratagem.cluster import ClusterSpec
from stratagem.collectives import Group, GroupOptions
from stratagem.errors import RemoteError
from stratagem.runtime.peers import Peers, task_name
from stratagem.runtime.wire import Credentials, Listener
from stratagem.runtime.wire.arrays import Array

CREDENTIALS = Credentials("the secret of the tests")
Say = Callable[..., None]


@contextmanager
def group_of(
    worker: int,
    addresses: list[str],
    sock: socket.socket,
    generation: int = 0,
    **options: Any,
) -> Iterator[Callable[..., Group]]:
    """Makes groups of the crew's workers."""
    tasks = [task_name("worker", index) for index in range(len(addresses))]
    peers = Peers(ClusterSpec({"worker": addresses}), CREDENTIALS, tasks[worker])
    with Listener(sock, credentials=CREDENTIALS) as listener:

        def make(name: str = "workers", **more: Any) -> Group:
            chosen = GroupOptions(**{"timeout": 10.0, "forming": 20.0, **options, **more})
            return Group(listener, peers, tasks, worker, chosen, name=name, generation=generation)

        yield make
    peers.close()


# ------------------------------------------------------------------------ sums

MODEL = [((784, 500), "float32"), ((500,), "float32"), ((500, 10), "float32"), ((10,), "float32")]
ODD = [
    ((), "float32"),
    ((0,), "float32"),
    ((3, 0, 2), "int32"),
    ((1,), "float64"),
    ((7,), "int64"),
    ((5, 3), "float16"),
    ((2, 9), "bfloat16"),
    ((4,), "complex64"),
    ((33,), "uint8"),
    ((6,), "int4"),
    ((17, 4), "float32"),
]
LARGE = [((300, 1001), "float32"), ((9,), "int32"), ((100_003,), "bfloat16"), ((1_300_001,), "float32")]
Specs = list[tuple[tuple[int, ...], str]]
SETS: list[Specs] = [MODEL, ODD, [], [((), "float32")], LARGE]


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def made(specs: Specs, worker: int, seed: int) -> list[Array]:
    """A worker's arrays; not all of them contiguous."""
    generator = np.random.default_rng([seed, worker])
    arrays = []
    for number, (shape, name) in enumerate(specs):
        dtype = dtype_named(name)
        if name == "int4":
            values: Any = generator.integers(-2, 2, shape)
        elif dtype.kind in "iu":
            values = generator.integers(0, 60, shape)
        elif dtype.kind == "c":
            values = generator.standard_normal(shape) + 1j * generator.standard_normal(shape)
        else:
            values = generator.standard_normal(shape)
        array = np.asarray(values).astype(dtype)
        arrays.append(np.asfortranarray(array) if number % 3 == 2 else array)
    return arrays


def summed(parts: list[list[Array]]) -> list[Array]:
    """The sums in the order of the workers, narrow floating point in float32."""
    sums = []
    for arrays in zip(*parts, strict=True):
        dtype = arrays[0].dtype
        narrow = dtype.itemsize < 4 and dtype.kind not in "iu"
        wide = np.dtype(np.int32 if dtype.name == "int4" else np.float32) if narrow else dtype
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total = total + array.astype(wide)
        sums.append(np.asarray(total).astype(dtype))
    return sums


def check(found: list[Array], wanted: list[Array]) -> None:
    assert len(found) == len(wanted)
    for each, right in zip(found, wanted, strict=True):
        assert each.dtype == right.dtype
        assert each.shape == right.shape
        assert each.tobytes() == right.tobytes()
        assert each.__array_interface__["data"][0] % 64 == 0 or each.size == 0


def sums(worker: int, addresses: list[str], sock: socket.socket, say: Say) -> str:
    """Every set of arrays in packs of every size; what came out, as a digest."""
    digest = hashlib.sha256()
    sets = [[made(specs, index, seed) for index in range(len(addresses))] for seed, specs in enumerate(SETS)]
    wanted = [summed(parts) for parts in sets]
    with group_of(worker, addresses, sock) as make:
        for size in (0, 1, 1000, 1 << 20):
            with make(f"packs-of-{size}", bytes_per_pack=size) as group:
                for parts, total in zip(sets, wanted, strict=True):
                    held = group.all_reduce(parts[worker])
                    check(held, total)
                    # What is held stays as it is, whatever comes after it.
                    for _ in range(3):
                        group.all_reduce(parts[0])
                    check(held, total)
                    for array in held:
                        digest.update(array.tobytes())
    return digest.hexdigest()


def steps(worker: int, addresses: list[str], sock: socket.socket, say: Say, count: int) -> str:
    """So many all-reduces of a small model, each made of the last one's sums."""
    with group_of(worker, addresses, sock) as make, make() as group:
        arrays = made(MODEL, worker, 0)
        for _ in range(count):
            total = group.all_reduce(arrays)
            arrays = [0.4 * each + 0.3 * array for each, array in zip(total, arrays, strict=True)]
        return hashlib.sha256(b"".join(array.tobytes() for array in total)).hexdigest()


def uneven(worker: int, addresses: list[str], sock: socket.socket, say: Say) -> list[float]:
    """Worker i has 3 i batches: all go on until all are done, and nothing is dropped."""
    totals = []
    with group_of(worker, addresses, sock) as make, make() as group:
        left = 3 * worker
        while not group.all_done:
            has_one = left > 0
            total, rows = group.all_reduce(
                [np.full(3, worker + 1.0), np.asarray(int(has_one))], empty=not has_one, done=not has_one
            )
            left -= 1
            totals.append(float(total[1]))
            assert int(rows) == sum(3 * index >= len(totals) for index in range(group.count))
    return totals


def others(worker: int, addresses: list[str], sock: socket.socket, say: Say) -> None:
    """Gather, broadcast and barrier, in turn with sums."""
    with group_of(worker, addresses, sock) as make, make() as group:
        for step in range(20):
            ragged = [np.arange(worker * step), np.asarray(worker == 1)]
            gathered = group.all_gather(ragged if worker else [])
            assert [len(each) for each in gathered] == [0] + [2] * (group.count - 1)
            for index in range(1, group.count):
                assert np.array_equal(gathered[index][0], np.arange(index * step))
                assert bool(gathered[index][1]) == (index == 1)
            root = step % group.count
            large = np.full(50_000, step)
            shared = group.broadcast([large, np.asarray("x" == "x")] if worker == root else [], root)
            assert np.array_equal(shared[0], large)
            assert shared[1]
            group.barrier()
            (total,) = group.all_reduce([np.asarray(worker)])
            assert int(total) == sum(range(group.count))


def cycles(worker: int, addresses: list[str], sock: socket.socket, say: Say, count: int) -> float:
    """So many groups, one after the other; the longest that forming, summing once and closing took."""
    longest = 0.0
    with group_of(worker, addresses, sock) as make:
        for number in range(count):
            began = time.monotonic()
            with make(f"number-{number}") as group:
                assert float(group.all_reduce([np.ones(())])[0]) == group.count
            longest = max(longest, time.monotonic() - began)
    return longest


# -------------------------------------------------------------------- failures


def endless(worker: int, addresses: list[str], sock: socket.socket, say: Say, **options: Any) -> None:
    """All-reduce until something breaks, then once more."""
    with group_of(worker, addresses, sock, **options) as make:
        group = make()
        arrays = made(MODEL, worker, 0)
        try:
            for step in range(1_000_000):
                group.all_reduce(arrays)
                if step == 5:
                    say(going=True)
        finally:
            raised = time.monotonic()
            try:
                group.all_reduce(arrays)
            except RemoteError as error:
                say(again=type(error).__name__, words=str(error), task=error.task, at=raised)


def mixed(
    worker: int, addresses: list[str], sock: socket.socket, say: Say, fault: str, **options: Any
) -> None:
    """Three steps alike, then worker 1 does something else."""
    with group_of(worker, addresses, sock, **options) as make:
        group = make()
        for _ in range(3):
            group.all_reduce(made(MODEL, worker, 0))
        if worker == 1 and fault == "barrier":
            group.barrier()
        elif worker == 1 and fault == "leaves":
            group.close()
            say(closed=True)
            return
        elif worker == 1 and fault == "fails":
            group.close(finish=False)
            return
        elif worker == 1 and fault == "sleeps":
            while True:
                time.sleep(1)
        elif worker == 1 and fault == "interrupted":
            group.all_reduce(Interrupting())
        elif worker == 1 and fault == "shapes":
            group.all_reduce(made([*MODEL[:2], ((500, 11), "float32"), *MODEL[3:]], worker, 0))
        elif worker == 1 and fault == "fewer":
            group.all_reduce(made(MODEL[:3], worker, 0))
        else:
            group.all_reduce(made(MODEL, worker, 0))


class Interrupting(list[Any]):
    """Arrays of which the last does not come."""

    def __iter__(self) -> Iterator[Any]:
        raise KeyboardInterrupt


def late(worker: int, addresses: list[str], sock: socket.socket, say: Say, **options: Any) -> float:
    """Form, and sum once."""
    with group_of(worker, addresses, sock, **options) as make:
        say(listens=True)
        with make() as group:
            return float(group.all_reduce([np.ones(())])[0])


def alone(worker: int, addresses: list[str], sock: socket.socket, say: Say, **options: Any) -> None:
    """Listen without ever making a group."""
    with group_of(worker, addresses, sock, **options):
        say(listens=True)
        while True:
            time.sleep(1)


PROGRAMS: dict[str, Callable[..., Any]] = {
    program.__name__: program
    for program in (sums, steps, uneven, cycles, others, endless, mixed, late, alone)
}
