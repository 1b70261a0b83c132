"""All-reduce between two processes against a bare one that moves the same bytes, in one run, alternating.

    python -m benchmarks.all_reduce [--rounds 12] [--json]

The bare one is written by hand over shared memory (memfd) and eventfd: each process writes half of its array
for the other, sums the half that is its own, writes the sum for the other, and reads the other's. That is the
same number of copies, and nothing else: no names, no checks, no deadlines, no packing, and it is told the
sizes beforehand. PyTorch's gloo takes part where it is installed. What counts are the
ratios within rounds.
"""

import json
import mmap
import os
import secrets
import socket
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.racing.taking_turns import Act, Times, rounds_wanted, show, timed
from stratagem.cluster import ClusterSpec
from stratagem.collectives import Group
from stratagem.runtime.peers import Peers, task_name
from stratagem.runtime.wire import Credentials, Listener
from stratagem.runtime.wire.arrays import Array

SIZES = {
    "1.6 MB": [(784, 500), (500,), (500, 10), (10,)],
    "64 MB": [(4000, 2000), (2000, 4000), (16,)],
}
TARGETS = {"1.6 MB": 2.0, "64 MB": 1.3}
SECONDS_PER_CASE, ROUNDS, WORKERS = 3.0, 12, 2
ROOT = Path(__file__).parents[1]


def leaves(label: str, worker: int) -> list[Array]:
    generator = np.random.default_rng(worker)
    return [generator.standard_normal(shape).astype(np.float32) for shape in SIZES[label]]


# --------------------------------------------------------------- the cases


class Bare:
    """Two processes, one flat float32 array, memory and events shared by inheritance."""

    def __init__(self, worker: int, label: str, memory: int, events: list[int]) -> None:
        data = np.concatenate([leaf.reshape(-1) for leaf in leaves(label, worker)])
        half = data.size // 2
        shared = np.frombuffer(mmap.mmap(memory, bare_bytes(label)), np.float32)
        slots = shared.reshape(4, -1)
        mine, theirs = (slice(0, half), slice(half, None))[:: 1 if worker == 0 else -1]
        size = {0: half, 1: data.size - half}
        out, sum_out = slots[worker][: size[1 - worker]], slots[2 + worker][: size[worker]]
        part, sum_in = slots[1 - worker][: size[worker]], slots[3 - worker][: size[1 - worker]]
        total = np.zeros_like(data)
        own_event, other_event = events[worker], events[1 - worker]
        own, other = data[mine], data[theirs]
        first, second = (own, part) if worker == 0 else (part, own)

        def run() -> None:
            np.copyto(out, other)
            os.eventfd_write(own_event, 1)
            os.eventfd_read(other_event)
            np.add(first, second, out=total[mine])
            np.copyto(sum_out, total[mine])
            os.eventfd_write(events[2 + worker], 1)
            os.eventfd_read(events[3 - worker])
            np.copyto(total[theirs], sum_in)

        self.run, self.total = run, total


def bare_bytes(label: str) -> int:
    elements = sum(int(np.prod(shape)) for shape in SIZES[label])
    return 4 * 4 * (-(-(elements // 2 + 1) // 16) * 16)


def gloo(worker: int, label: str, port: int) -> Act:
    import torch  # type: ignore[import-not-found,unused-ignore]
    import torch.distributed as distributed  # type: ignore[import-not-found,unused-ignore]

    if not distributed.is_initialized():
        torch.set_num_threads(1)
        distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=worker, world_size=WORKERS
        )
    data = torch.from_numpy(np.concatenate([leaf.reshape(-1) for leaf in leaves(label, worker)]))
    total = torch.empty_like(data)

    def run() -> None:
        total.copy_(data)  # it sums in place
        distributed.all_reduce(total)

    return run


def cases(worker: int, settings: dict[str, object], group: Group) -> dict[str, dict[str, Act]]:
    found: dict[str, dict[str, Act]] = {}
    shared: dict[str, list[int]] = settings["bare"]  # type: ignore[assignment]
    for label in SIZES:
        arrays = leaves(label, worker)
        bare = Bare(worker, label, shared[label][0], shared[label][1:])
        sums = group.all_reduce(arrays)
        bare.run()
        if not np.array_equal(np.concatenate([each.reshape(-1) for each in sums]), bare.total):
            sys.exit(f"the sums of {label} are not those of the bare loop")

        def run(arrays: list[Array] = arrays) -> None:
            group.all_reduce(arrays)

        found[label] = {"bare": bare.run, "all_reduce": run}
        if settings["gloo"]:
            found[label]["gloo"] = gloo(worker, label, int(str(settings["gloo"])))
    return found


# --------------------------------------------------------------- measuring


def work(worker: int, settings: dict[str, object]) -> None:
    """Run as one of the two processes: worker 0 announces the next case, and measures."""
    addresses: list[str] = settings["addresses"]  # type: ignore[assignment]
    cluster = ClusterSpec({"worker": addresses})
    credentials = Credentials(str(settings["secret"]))
    peers = Peers(cluster, credentials, task_name("worker", worker))
    with Listener(addresses[worker], credentials=credentials) as listener:
        group = Group(listener, peers, [task_name("worker", index) for index in range(WORKERS)], worker)
        times = measure(cases(worker, settings, group), group, int(str(settings["rounds"])))
        group.close()
    if worker == 0:
        print(json.dumps(times))
    peers.close()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads take their time


def measure(found: dict[str, dict[str, Act]], group: Group, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the median of each round, by size and contender."""
    times: dict[str, dict[str, list[float]]] = {}
    for label, contenders in found.items():
        times[label] = {name: [] for name in contenders}
        repeats = {}
        for name, run in contenders.items():
            for _ in range(3):
                run()
            took = timed(run)
            most = np.asarray(max(1, int(SECONDS_PER_CASE / rounds / took)))
            repeats[name] = int(group.broadcast([most])[0])
        for _ in range(rounds):
            for name, run in contenders.items():
                run()  # whoever comes first after another's turn meets cold caches
                times[label][name].append(statistics.median(timed(run) for _ in range(repeats[name])))
    return times


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    shared = {
        label: [os.memfd_create("bare"), *(os.eventfd(0) for _ in range(2 * WORKERS))] for label in SIZES
    }
    for label, (memory, *_) in shared.items():
        os.ftruncate(memory, bare_bytes(label))
    settings = {
        "addresses": [f"127.0.0.1:{free_port()}" for _ in range(WORKERS)],
        "secret": secrets.token_hex(16),
        "bare": shared,
        "rounds": rounds_wanted(ROUNDS),
        "gloo": free_port() if find_spec("torch") else None,
    }
    descriptors = [descriptor for each in shared.values() for descriptor in each]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.all_reduce", "work", str(worker), json.dumps(settings)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            text=True,
        )
        for worker in range(WORKERS)
    ]
    try:
        out, _ = children[0].communicate(timeout=300)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    report(json.loads(out))


def report(found: dict[str, dict[str, list[float]]]) -> None:
    lines = []
    for label, rounds in found.items():
        times = Times(rounds)
        lines.append(times.compare(label, "all_reduce", most=TARGETS[label]))
        if "gloo" in rounds:
            lines.append(times.compare(label, "all_reduce", "gloo"))
    if "--json" in sys.argv:
        print(json.dumps(lines))
    else:
        show(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(int(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
