"""One server and three workers, each on a host of its own, over TCP with TLS and a secret: whatever the network does.

Hosts are network namespaces. Where the kernel can delay and lose packets (netem), it does; elsewhere lines in front of
the server stand for that: what they pass on comes late, some of it later by TCP's retransmission timeout, and
connections break after some bytes, which is all that tasks see of lost packets.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from drills import counting_files, cut_links
from drills.nursery import Nursery
from drills.processes import until
from hosts import Host, NotHere, simulated_hosts
from process.parameters.proxy import BadLine
from process.runtime.wire.certificates import Authority
from process.several_hosts.far_line import FarLine
from stratagem import environment
from stratagem.tools.launch.job_shape import tf_config
from stratagem.tools.launch.tasks import TaskName

HERE = Path(__file__).parent
WORKERS = 3
UPDATES = 90
BYTES = (12_000, 24_000)
"""After which a connection breaks; a job's first calls take most of the lower number."""
SECRET = "known to all tasks"


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Those of the job, the server's first, and a stranger's."""
    with simulated_hosts(1 + WORKERS + 1) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> dict[str, str]:
    """What the tasks of the job have in their environment."""
    return known(SECRET, authority.issue("task"))


def known(secret: str, files: tuple[str, str, str] | None) -> dict[str, str]:
    names = (environment.TLS_CA, environment.TLS_CERT, environment.TLS_KEY)
    return {environment.SECRET: secret, **(dict(zip(names, files, strict=True)) if files else {})}


@contextlib.contextmanager
def far_apart(hosts: list[Host], address: str) -> Iterator[list[str]]:
    """Make the workers' hosts far away from an address: what to call it on each of them."""
    with contextlib.ExitStack() as stack:
        try:
            for host in hosts:
                host.degrade(delay_milliseconds=5, loss_percent=1)
                stack.callback(host.degrade)
            called = [address] * len(hosts)
        except NotHere:
            called = stack.enter_context(bad_lines(hosts, address))
        yield called


@contextlib.contextmanager
def bad_lines(hosts: list[Host], address: str) -> Iterator[list[str]]:
    """Two lines one after the other on each host: one is long and loses pieces, the other breaks connections."""
    with contextlib.ExitStack() as stack:
        far, bad = [], []
        for seed, host in enumerate(hosts):
            # Made on the host, their threads stay there.
            line = stack.enter_context(host.run(partial(BadLine, address, seed, *BYTES)))
            line.turn_bad()
            bad.append(line)
            far.append(
                stack.enter_context(
                    host.run(partial(FarLine, line.address, delay=0.005, loss=0.02, seed=seed))
                )
            )
        yield [line.address for line in far]
        assert sum(line.broken for line in bad) > 0, "no connection was broken"
        assert sum(line.lost for line in far) > 0, "nothing was lost"


def train(
    nursery: Nursery, place: Path, hosts: list[Host], secure: dict[str, str], rule: str, called: list[str]
) -> None:
    """The whole job; `called` is what the server is called on each worker's host."""
    with nursery.job(place, 1, WORKERS, hosts, secure) as job:
        server = job.serve(0)
        workers = []
        for index in range(WORKERS):
            seen = {**job.addresses, TaskName("ps", 0): called[index]}
            own = {"TF_CONFIG": tf_config(TaskName("worker", index), seen)}
            workers.append(job.start("worker", index, HERE / "regression_job.py", rule, UPDATES, **own))
        for task in (*workers, server):
            task.ends_well()
    found = [worker.results()[0] for worker in workers]
    assert max(each["step"] for each in found) == UPDATES
    last = max(found, key=lambda each: int(each["step"]))
    assert last["loss"] < last["at_first"] / 10, "it has learned nothing"
    if rule == "sg.Sync()":
        assert {each["step"] for each in found} == {UPDATES}
        assert last["away"] < 1e-4, "not what one device alone makes of the same batches"


@pytest.mark.parametrize("rule", ["sg.Async()", "sg.Sync()"])
def test_a_quiet_network(
    nursery: Nursery, hosts: list[Host], secure: dict[str, str], tmp_path: Path, rule: str
) -> None:
    train(nursery, tmp_path, hosts[:4], secure, rule, [f"{hosts[0].address}:2222"] * WORKERS)


@pytest.mark.parametrize("rule", ["sg.Async()", "sg.Sync()"])
def test_far_apart_and_lossy(
    nursery: Nursery, hosts: list[Host], secure: dict[str, str], tmp_path: Path, rule: str
) -> None:
    with far_apart(hosts[1:4], f"{hosts[0].address}:2222") as called:
        train(nursery, tmp_path, hosts[:4], secure, rule, called)


@pytest.mark.parametrize(
    ("rule", "victim"), [("sg.Async()", "worker"), ("sg.Async()", "ps"), ("sg.Sync()", "worker")]
)
def test_a_partition_that_heals(
    nursery: Nursery, hosts: list[Host], secure: dict[str, str], rule: str, victim: str
) -> None:
    """What was under way is sent again, and counts once."""
    cut_links.drill(nursery, hosts[:4], rule, [(victim, 0, 2.0)], servers=1, environ=secure)


def test_strangers_get_nowhere_and_disturb_nobody(
    nursery: Nursery, hosts: list[Host], authority: Authority, secure: dict[str, str], tmp_path: Path
) -> None:
    others = Authority(tmp_path / "others").issue("stranger")
    strangers = {
        "another secret": known("guessed", authority.issue("client")),
        "speaks TLS only": known(SECRET, None),
        "certificate": known(SECRET, others),
    }
    place = tmp_path / "job"
    place.mkdir()
    with nursery.job(place, 1, WORKERS, hosts[:4], secure) as job:
        server = job.serve(0)
        workers = [
            job.start("worker", index, counting_files.TASK, "sg.Async()", place) for index in range(WORKERS)
        ]
        until(
            "the training to be under way",
            lambda: counting_files.reached(place) > 5 or server.code is not None,
            90,
        )
        for words, environ in strangers.items():
            directory = tmp_path / words
            directory.mkdir()
            with nursery.job(directory, 0, 1, hosts[4:], environ) as outside:
                config = tf_config(TaskName("worker", 1), job.addresses)
                stranger = outside.start("worker", 0, HERE / "stranger.py", job.target, TF_CONFIG=config)
                stranger.ends_well()
            for said in stranger.results()[0].values():
                assert said.startswith("AuthenticationError: "), said
                assert words in said
        assert server.text.count(f"refused a connection from {hosts[4].address}") >= len(strangers)
        reached = counting_files.reached(place)
        until(
            "the training to go on",
            lambda: counting_files.reached(place) > reached + 20 or server.code is not None,
            90,
        )
        counting_files.set_target(place, counting_files.reached(place) + 20)
        for task in (*workers, server):
            task.ends_well()
    counting_files.check(place, WORKERS, in_step=False)
