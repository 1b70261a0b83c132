"""Servers and sessions: the classic tutorials in our words, and what goes wrong in real clusters."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import stratagem as sg
from drills.cluster import ServedCluster
from drills.nursery import Nursery
from drills.processes import until
from process.conftest import ScriptWriter
from stratagem.runtime.wire import Credentials, Peer
from stratagem.tools.launch.tasks import ReservedPort

PRELUDE = "import stratagem as sg\n"


@pytest.fixture(scope="module")
def cluster(nursery: Nursery) -> Iterator[ServedCluster]:
    with ServedCluster({"ps": 2, "worker": 2}, nursery=nursery) as served:
        yield served


@pytest.fixture
def session(cluster: ServedCluster) -> Iterator[sg.Session]:
    with sg.Session(cluster.target("worker", 0), secret=cluster.secret) as opened:
        yield opened


@pytest.fixture(scope="module")
def local() -> Iterator[sg.Session]:
    with sg.Server.create_local_server() as server, sg.Session(server.target) as opened:
        yield opened


def test_a_local_server_says_hello(local: sg.Session) -> None:
    assert local.run(lambda: b"Hello, distributed Stratagem!") == b"Hello, distributed Stratagem!"
    assert local.run(lambda words: words, b"Hello") == b"Hello"


@pytest.mark.parametrize("returned", ["Hello", {"greeting": ["Hello"]}, object(), np.array(["Hello"])])
def test_a_function_that_returns_what_does_not_travel(local: sg.Session, returned: object) -> None:
    def greet() -> object:
        return returned

    with pytest.raises(
        sg.ProtocolError, match=r"greet returned .*; .* may return arrays, numbers, bytes, None"
    ):
        local.run(greet)


def test_a_function_may_return_what_is_not_traced(local: sg.Session) -> None:
    found = local.run(lambda: {"whole": 3, "half": 0.5, "is": True, "array": np.arange(2.0), "nothing": None})
    assert {name: value if value is None else value.tolist() for name, value in found.items()} == {
        "whole": 3,
        "half": 0.5,
        "is": True,
        "array": [0.0, 1.0],
        "nothing": None,
    }


def test_every_device_of_every_task(session: sg.Session) -> None:
    assert [device.name for device in session.devices()] == [
        f"/job:{job}/replica:0/task:{index}/device:CPU:0" for job in ("ps", "worker") for index in range(2)
    ]


def test_weights_on_two_servers_compute_on_a_worker_data_past_the_client(
    cluster: ServedCluster, session: sg.Session
) -> None:
    x = np.ones((1, 512), np.float32)
    with sg.device("/job:ps/task:0"):
        w1 = session.variable(np.eye(512, dtype=np.float32), name="w1")
    with sg.device("/job:ps/task:1"):
        w2 = session.variable(np.full((512, 512), 0.5, np.float32), name="w2")
    assert w1.device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert w2.device == "/job:ps/replica:0/task:1/device:CPU:0"

    @jax.jit
    def forward(w1: jax.Array, w2: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return w1 + 1, w2 - 0.5, (x @ w1 @ w2).sum()

    step = session.function(forward, device="/job:worker/task:1", assign_to=[w1, w2])
    before = session.status()
    assert step(w1, w2, x) == 512 * 512 * 0.5
    after = session.status()
    np.testing.assert_array_equal(w1.read(), np.eye(512, dtype=np.float32) + 1)
    np.testing.assert_array_equal(w2.read(), np.zeros((512, 512), np.float32))

    def moved(task: str, direction: str) -> int:
        return int(after[task][direction]) - int(before[task][direction])

    tensor = w1.read().nbytes
    for ps in ("/job:ps/task:0", "/job:ps/task:1"):
        assert moved(ps, "bytes_out") > tensor, "the worker fetched it from the server"
        assert moved(ps, "bytes_in") > tensor, "and wrote it back"
    for direction in ("bytes_in", "bytes_out"):
        assert moved("/job:worker/task:1", direction) < tensor / 10, "the client neither sent nor got it"


def test_a_client_in_a_third_process(cluster: ServedCluster, nursery: Nursery, script: ScriptWriter) -> None:
    path = script(f"""
        import numpy as np
        with sg.Session({cluster.target("ps", 1)!r}) as session:
            with sg.device("/job:ps/task:1"):
                total = session.variable(0.0, name="total")
            add = session.function(lambda total, x: total + x.sum(), device="/job:worker/task:0", assign_to=total)
            for number in range(5):
                assert add(total, np.full(3, number, np.float32)) is None
            print(total.read())
    """)
    client = forked(nursery, path, STRATAGEM_SECRET=cluster.secret)
    assert (client.returncode, client.stdout) == (0, "30.0\n"), client.stderr


def test_chooser_spreads_variables(cluster: ServedCluster, session: sg.Session) -> None:
    chooser = sg.replica_device_setter(cluster=cluster.cluster)
    assert chooser is not None
    with sg.device(chooser):
        variables = [session.variable(np.zeros(2), name=f"spread{number}") for number in range(4)]
    assert [variable.task for variable in variables] == ["/job:ps/task:0", "/job:ps/task:1"] * 2


DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 0, 4)])
def test_every_dtype_and_shape_goes_there_and_back(
    local: sg.Session, name: str, shape: tuple[int, ...]
) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    value = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2).astype(dtype)
    variable = local.variable(value)
    for back in (variable.read(), local.run(lambda x: x, value), local.run(lambda x: x, variable)):
        assert isinstance(back, np.ndarray)
        assert (back.dtype, back.shape) == (dtype, shape)
        assert back.tobytes() == value.tobytes()


def test_64_bits_where_they_are_enabled(local: sg.Session) -> None:
    value = np.array([2**40 + 1, 3], np.int64)
    with jax.enable_x64(True):
        variable = local.variable(value)
        variable.assign_add(value)
        np.testing.assert_array_equal(variable.read(), 2 * value)
        np.testing.assert_array_equal(local.run(lambda x: x * 2, value), 2 * value)
    assert local.variable(value.astype(np.float64)).dtype == "float32", "as everywhere in JAX"


def test_large_tensors_through_shared_memory_and_not(
    cluster: ServedCluster, session: sg.Session, nursery: Nursery, script: ScriptWriter
) -> None:
    value = np.random.default_rng(0).standard_normal((1000, 4001)).astype(np.float32)
    variable = session.variable(value, name="large", device="/job:ps/task:0")
    np.testing.assert_array_equal(variable.read(), value)
    path = script(f"""
        with sg.Session({cluster.target("ps", 0)!r}) as session:
            value = session.get_variable("large", device="/job:ps/task:0").read()
            print(value.shape, session._peers["/job:ps/task:0"].transport, float(value[7, 11]))
    """)
    for shm, transport in (("on", "shared memory"), ("off", "tcp")):
        client = forked(nursery, path, STRATAGEM_SECRET=cluster.secret, STRATAGEM_SHM=shm)
        assert client.stdout == f"(1000, 4001) {transport} {float(value[7, 11])}\n", client.stderr


def test_two_thousand_calls_from_32_threads(local: sg.Session) -> None:
    total = local.variable(np.zeros(4, np.int32))
    square = local.function(lambda x: x * x)

    def work(thread: int) -> int:
        for number in range(32):
            assert square(np.int32(thread + number)) == (thread + number) ** 2
            total.assign_add(np.full(4, number, np.int32))
        return 2 * 32

    with ThreadPoolExecutor(32) as threads:
        assert sum(threads.map(work, range(32))) > 2_000
    np.testing.assert_array_equal(total.read(), np.full(4, 32 * sum(range(32))))


def test_concurrent_steps_on_a_local_variable_lose_nothing(local: sg.Session) -> None:
    count = local.variable(np.zeros(1000, np.float32))
    step = local.function(lambda count: count + 1, assign_to=count)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: step(count), range(200)))
    np.testing.assert_array_equal(count.read(), np.full(1000, 200, np.float32))


def test_trees_in_and_out(local: sg.Session) -> None:
    result = local.run(lambda tree: {"sum": tree["a"] + tree["b"][0], "none": None}, {"a": 1.0, "b": [2.0]})
    assert result == {"sum": 3.0, "none": None}


def test_user_error_shows_the_users_line(local: sg.Session) -> None:
    def broken(x: jax.Array) -> jax.Array:
        return x + undefined  # type: ignore  # noqa: F821

    with pytest.raises(NameError, match="undefined") as caught:
        local.run(broken, 1.0)
    assert caught.traceback[-1].name == "broken"


def test_mismatches_are_named(local: sg.Session) -> None:
    variable = local.variable(np.zeros(3, np.float32), name="three")
    with pytest.raises(
        sg.VariableMismatch, match=r"'three' is float32\[3\], the value for it is float32\[4\]"
    ) as caught:
        variable.assign(np.zeros(4, np.float32))
    assert caught.value.task == "/job:local/task:0"
    with pytest.raises(sg.VariableMismatch, match=r"returns float32\[6\] for variable 'three'"):
        local.function(lambda x: jnp.concatenate([x, x]), assign_to=variable)(variable)
    with pytest.raises(sg.VariableMismatch, match="returns 1 values, and 2 variables"):
        local.function(lambda x: x, assign_to=[variable, local.variable(0.0)])(variable)
    with pytest.raises(sg.VariableNotFound, match="no variable 'tree' here"):
        local.get_variable("tree")
    with pytest.raises(sg.ClusterError, match="no task '/job:ps/task:7'"):
        local.run(lambda: 1, device="/job:ps/task:7")
    with pytest.raises(sg.DeviceNotFoundError, match="no /device:GPU:0"):
        local.run(lambda: 1, device="/gpu:0")
    with pytest.raises(sg.ProtocolError, match="text does not travel"):
        local.variable("text")


def test_python_numbers_take_the_variables_dtype(local: sg.Session) -> None:
    variable = local.variable(np.zeros(2, np.float16))
    variable.assign([1, 2])
    variable.assign_add([1, 1])
    np.testing.assert_array_equal(variable.read(), np.array([2, 3], np.float16))


def test_strings_may_grow(local: sg.Session) -> None:
    words = local.variable(b"short", name="words")
    local.variable(b"much longer", name="words")
    assert words.read() == b"much longer"
    words.assign(b"again another")
    assert words.read() == b"again another"


def test_variables_without_a_name_go_with_their_session(cluster: ServedCluster) -> None:
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as first:
        first.variable(1.0, device="/job:ps/task:0")
        first.variable(2.0, name="kept", device="/job:ps/task:0")
        names = {each["name"] for each in first.status()["/job:ps/task:0"]["variables"]}
        assert any(first.name in name for name in names)
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as second:
        names = {each["name"] for each in second.status()["/job:ps/task:0"]["variables"]}
        assert not any(first.name in name for name in names)
        assert second.get_variable("kept", device="/job:ps/task:0").read() == 2.0


def test_restarted_task_gets_the_program_again(nursery: Nursery) -> None:
    with (
        ServedCluster({"worker": 1}, nursery=nursery) as own,
        sg.Session(own.target("worker", 0), secret=own.secret) as session,
    ):
        double = session.function(lambda x: 2 * x)
        assert double(1.0) == 2.0
        own.kill("worker", 0)
        with pytest.raises((sg.TaskLost, sg.TaskUnreachable)):
            sg.Session(own.target("worker", 0), secret=own.secret, timeout=0.5)
        own.start("worker", 0)
        assert double(2.0) == 4.0


def test_call_to_a_task_that_starts_later_waits_for_it(nursery: Nursery) -> None:
    with (
        ServedCluster({"ps": 1, "worker": 1}, nursery=nursery) as own,
        sg.Session(own.target("ps", 0), secret=own.secret) as session,
    ):
        assert session.run(lambda: 1, device="/job:worker/task:0") == 1
        own.kill("worker", 0)
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(session.run, lambda: 2, device="/job:worker/task:0")
            own.start("worker", 0)
            assert answer.result(60) == 2


def test_frozen_task_ends_in_a_deadline_that_names_it(nursery: Nursery) -> None:
    with (
        ServedCluster({"worker": 1}, nursery=nursery) as own,
        sg.Session(own.target("worker", 0), secret=own.secret) as session,
    ):
        assert session.run(lambda: 1) == 1
        session.timeout = 2.0
        own.kill("worker", 0, signal.SIGSTOP)
        with pytest.raises(sg.DeadlineExceeded, match=r"/job:worker/task:0 at 127.0.0.1:\d+ did not answer"):
            session.run(lambda: 1)
        own.kill("worker", 0, signal.SIGCONT)
        session.timeout = 60.0
        assert session.run(lambda: 1) == 1


def test_wrong_secret_is_refused(cluster: ServedCluster) -> None:
    with pytest.raises(sg.AuthenticationError, match="STRATAGEM_SECRET"):
        sg.Session(cluster.target("ps", 0), secret="a guess")


def test_serving_openly_without_a_secret_is_refused() -> None:
    with pytest.raises(sg.AuthenticationError, match=r"refused to listen at 0.0.0.0:\d+ without a secret"):
        sg.Server({"worker": ["0.0.0.0:0"]})


def test_tasks_at_two_addresses_of_one_host_may_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATAGEM_SECRET", "pepper")
    reserved = ReservedPort()
    port = int(reserved.address.rpartition(":")[2])
    cluster = {"ps": [f"127.2:{port}"], "worker": [f"127.3:{port}"]}  # names, of 127.0.0.2 and 127.0.0.3
    with sg.Server(cluster, "ps", 0), sg.Server(cluster, "worker", 0) as worker:
        with sg.Session(worker.target) as session, sg.device("/job:ps"):
            assert session.run(lambda: 7) == 7
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        reserved.close()
        monkeypatch.setenv("STRATAGEM_LISTEN_HOST", "127.0.0.1")
        with sg.Server(cluster, "worker", 0):
            socket.create_connection(("127.0.0.1", port), 5).close()


def test_a_server_ends_although_a_program_runs_for_ever() -> None:
    def forever(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda value: value >= 0, lambda value: value * 0.5 + 1, x)

    with ServedCluster({"worker": 1}) as served, ThreadPoolExecutor(1) as threads:
        server = served.process("worker", 0)
        with sg.Session(served.target("worker", 0), secret=served.secret) as session:
            idle = processor_ticks(server.pid)
            run = threads.submit(session.run, forever, 1.0)
            until("the program to run", lambda: run.done() or processor_ticks(server.pid) > idle + 100, 90)
            server.process.send_signal(signal.SIGTERM)
            code, _, err = server.finish(60)
            assert (code, err) == (143, "")
            with pytest.raises(sg.TaskLost):
                run.result(60)


def processor_ticks(pid: int) -> int:
    """Hundredths of a second for which a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_job_is_done_when_every_worker_has_finished() -> None:
    ports = [ReservedPort() for _ in range(3)]
    addresses = {"ps": [ports[0].address], "worker": [ports[1].address, ports[2].address]}
    for port in ports:
        port.close()
    with sg.Server(addresses, "ps", 0) as ps, sg.Server(addresses, "worker", 0) as first:
        assert not ps.join(timeout=0.01)
        first.finish()
        assert not first.join(timeout=0.01), "it has finished, the other has not"
        with sg.Server(addresses, "worker", 1):
            assert not ps.join(timeout=0.01)
        assert ps.join(timeout=10)
        assert first.join(timeout=10)


def test_a_process_that_ends_normally_has_finished_and_one_that_fails_has_not(script: ScriptWriter) -> None:
    """With a server and a session alone, which nobody stops."""
    path = script("""
        import sys
        server = sg.Server({"ps": [sys.argv[1]], "worker": ["127.0.0.1:0"]}, "worker", 0)
        session = sg.Session(server.target)
        assert session.run(lambda: 1, device="/job:ps/task:0") == 1
        sys.exit(int(sys.argv[2]))
    """)
    with sg.Server({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:1"]}, "ps", 0) as ps:
        for code in (3, 0):
            assert not ps.join(timeout=0.01)
            words = [sys.executable, str(path), ps.target.removeprefix("sg://"), str(code)]
            ended = subprocess.run(words, capture_output=True, text=True, timeout=90)
            assert ended.returncode == code, ended.stderr
        assert ps.join(timeout=30)


def test_a_server_that_comes_late_learns_who_has_finished() -> None:
    ports = [ReservedPort() for _ in range(3)]
    addresses = {"ps": [ports[0].address], "worker": [ports[1].address, ports[2].address]}
    for port in ports:
        port.close()
    with sg.Server(addresses, "worker", 0) as first, sg.Server(addresses, "worker", 1) as second:
        first.finish()
        second.finish()
        assert first.join(timeout=10)
        with sg.Server(addresses, "ps", 0) as ps:
            assert ps.join(timeout=20)


def test_workers_that_only_serve_do_not_end_the_job() -> None:
    with sg.Server({"worker": ["127.0.0.1:0"]}) as server, ThreadPoolExecutor(1) as threads:
        joined = threads.submit(server.join, 30)
        with sg.Session(server.target) as session:
            assert session.run(lambda: 1) == 1
        assert not joined.done()
        server.finish()
        assert joined.result(30)


@pytest.mark.parametrize("kind", ["function", "add", "put"])
def test_reading_while_others_write_never_fails_and_nothing_is_lost(local: sg.Session, kind: str) -> None:
    value = local.variable(np.zeros(200_000, np.float32), name=f"raced-{kind}")
    other = local.variable(np.zeros(200_000, np.float32), name=f"raced-other-{kind}")
    step = local.function(lambda b, a: (a + 1, b + 1), assign_to=[value, other])
    twice = local.function(lambda a, b: a + b - b + 1, assign_to=[value])
    loss = local.function(lambda a, b: (a * b).sum())
    one = np.ones(200_000, np.float32)
    rounds = 60

    def write(number: int) -> None:
        for _ in range(rounds):
            if kind == "function":
                step(other, value) if number else twice(value, value)
            elif kind == "add":
                value.assign_add(one)
            else:
                local.variable(one, name=f"raced-{kind}")

    def read(_: int) -> None:
        for _ in range(rounds):
            found = value.read()
            assert (found == found[0]).all()
            loss(value, other)

    with ThreadPoolExecutor(6) as threads:
        work = [threads.submit(write, number) for number in range(3)] + [
            threads.submit(read, 0) for _ in range(3)
        ]
        for each in work:
            each.result(120)
    assert value.read()[0] == (1 if kind == "put" else 3 * rounds)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda session: session.variable(1.0, name=3), "a variable's name is text"),
        (lambda session: session.function(lambda x: x, assign_to=["w"]), "assign_to takes variables"),
        (
            lambda session: session.variable(np.zeros(2, np.uint8)).assign([300, -1]),
            r"uint8, which cannot hold \[300, -1\]",
        ),
        (lambda session: session.run(lambda x: x, 2**40), "does not fit into int32"),
        (lambda session: session.variable(b"abc").assign(np.zeros((2, 3))), "holds bytes"),
    ],
)
def test_misuse_is_told(local: sg.Session, misuse: Callable[[sg.Session], object], message: str) -> None:
    with pytest.raises(sg.StratagemError, match=message):
        misuse(local)


def test_a_closed_session_says_so() -> None:
    with sg.Server.create_local_server() as server:
        session = sg.Session(server.target)
        variable = session.variable(1.0)
        session.close()
        with pytest.raises(sg.TaskLost, match="closed"):
            session.run(lambda: 1)
        with pytest.raises(sg.TaskLost, match="closed"):
            variable.read()


def test_closing_a_session_whose_server_is_gone_takes_no_time(nursery: Nursery) -> None:
    with ServedCluster({"worker": 1}, nursery=nursery) as own:
        session = sg.Session(own.target("worker", 0), secret=own.secret)
        for number in range(5):
            session.variable(float(number))
        own.kill("worker", 0)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(session.close).result(10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_serve_ends_on_signals(number: signal.Signals, code: int) -> None:
    with ServedCluster({"ps": 1}) as own:
        running = own.process("ps", 0)
        assert running.process.stdout is not None
        assert b"serves at" in running.process.stdout.readline()
        with sg.Session(own.target("ps", 0), secret=own.secret) as session:
            session.run(lambda: 1)  # has the program inspected, in a process of its own
            os.kill(running.pid, number)
            assert running.process.wait(30) == code
        running.gone(10)


def test_a_server_that_was_asked_to_end_with_all_others_serves_until_workers_have_saved() -> None:
    with ServedCluster({"ps": 1}, STRATAGEM_GRACE="600") as own:
        running = own.process("ps", 0)
        worker = Peer(own.target("ps", 0), credentials=Credentials(own.secret), caller="/job:worker/task:0")
        with worker:
            worker.call("ping", timeout=30)
            os.kill(running.pid, signal.SIGTERM)
            until("the server to have heard it", lambda: ignores(running.pid, signal.SIGTERM))
            os.kill(running.pid, signal.SIGTERM)
            worker.call("ping", timeout=30)
        assert running.finish(30)[0] == 143


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_kill_of_a_server_leaves_nothing() -> None:
    with ServedCluster({"ps": 1}) as own:
        running = own.process("ps", 0)
        with sg.Session(own.target("ps", 0), secret=own.secret) as session:
            session.run(lambda: 1)
        own.kill("ps", 0)
        running.gone(10)


def test_placement_log(local: sg.Session, capfd: pytest.CaptureFixture[str]) -> None:
    sg.configure(log_device_placement=True)
    try:
        local.variable(1.0, name="w1")
        local.run(lambda: 1)
    finally:
        sg.configure(log_device_placement=False)
    assert "w1: (Variable): /job:local/replica:0/task:0/device:CPU:0\n" in capfd.readouterr().err


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stratagem", *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def forked(nursery: Nursery, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same for a script or `stratagem`, of which it does not matter how it was started."""
    return nursery.command(Path.cwd(), [*map(str, words)], {**os.environ, **environ}, 60)


def test_status_command(cluster: ServedCluster, session: sg.Session, nursery: Nursery) -> None:
    session.variable(np.zeros((3, 4), np.float32), name="shown", device="/job:ps/task:0")
    shown = command("status", cluster.target("ps", 0), STRATAGEM_SECRET=cluster.secret, COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"shown +│ float32 +│ 3×4 +│ 48 B", shown.stdout)
    assert "/job:worker/task:1" in shown.stdout
    words = ("stratagem", "status", cluster.target("ps", 0), "--json")
    as_json = forked(nursery, *words, STRATAGEM_SECRET=cluster.secret)
    said = json.loads(as_json.stdout)
    assert set(said) == {f"/job:{job}/task:{index}" for job in ("ps", "worker") for index in range(2)}
    assert said["/job:ps/task:0"]["platform"] == "cpu"


def test_status_of_nobody(nursery: Nursery) -> None:
    with sg.Server.create_local_server() as server:
        target = server.target
    shown = forked(nursery, "stratagem", "status", target)
    assert shown.returncode == 1
    assert "could not be reached" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_heartbeats_reach_the_leader(cluster: ServedCluster, session: sg.Session) -> None:
    def heard() -> set[str]:
        return set(session.status()["/job:ps/task:0"]["roster"])

    until("heartbeats of all tasks", lambda: len(heard()) == 4, 30)


def test_serve_without_a_task_says_what_is_missing() -> None:
    asked = command("serve")
    assert asked.returncode == 2
    assert "--job_name" in asked.stderr


def test_a_second_server_on_the_launchers_port_is_refused_while_the_first_runs(
    nursery: Nursery, script: ScriptWriter
) -> None:
    path = script("""
        config = sg.resolve_cluster()
        first = sg.Server(config.cluster)
        try:
            sg.Server(config.cluster)
        except sg.ClusterError as error:
            print("refused:", error)
        first.stop()
        with sg.Server(config.cluster) as again, sg.Session(again.target) as session:
            print("again", session.run(lambda b: 3, b"text"))
    """)
    job = forked(nursery, "stratagem", "run", path)
    assert job.returncode == 0, job.stderr
    assert "refused: another server of this process listens at" in job.stdout
    assert "again 3" in job.stdout
