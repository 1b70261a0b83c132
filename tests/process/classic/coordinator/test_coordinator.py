"""A single client that schedules closures on workers which are killed, fail, and have data of their own."""

import threading
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stratagem as sg
from drills.cluster import ServedCluster
from drills.processes import until


def test_closures_run_on_all_workers_and_their_values_come_back(
    coordinator: sg.ClusterCoordinator, session: sg.Session
) -> None:
    w = session.variable(np.arange(3.0), device="/job:ps/task:1")
    total = session.variable(0.0, device="/job:ps/task:0")

    def weigh(w: jax.Array, x: jax.Array, *, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = (w * x).sum() * factor
        return result, result

    def runs(worker: str) -> int:
        return int(session.status()[worker]["calls"].get("program.run", 0))

    before = {worker: runs(worker) for worker in ("/job:worker/task:0", "/job:worker/task:1")}
    values: list[sg.RemoteValue] = []
    memory = np.zeros(3, np.float32)

    def both_have_worked() -> bool:
        for n in range(len(values), len(values) + 60):
            memory[:] = n  # as who makes batches may do: what is queued is not touched
            values.append(coordinator.schedule(weigh, (w, memory), {"factor": 2.0}, add_to=total))
        coordinator.join()
        assert coordinator.done()
        return all(runs(worker) > runs_before + 5 for worker, runs_before in before.items())

    until("both workers to have run some", both_have_worked)  # the first to have compiled it may run many
    expected = [6.0 * n for n in range(len(values))]
    assert coordinator.fetch({"all": values})["all"] == expected
    assert values[3].get() == 18.0
    assert total.read() == sum(expected), "no addition of two workers at a time was lost"


def test_a_function_adds_where_the_variables_are(session: sg.Session) -> None:
    here, there = (session.variable(np.ones(2), device=f"/job:ps/task:{index}") for index in range(2))
    add = session.function(lambda x: (x, 2 * x, 7), device="/job:ps/task:0", add_to=[here, there])
    for _ in range(3):
        assert add(np.ones(2)) == 7
    np.testing.assert_array_equal([here.read(), there.read()], [[4, 4], [7, 7]])
    moved = session.function(lambda x: (3 * x, x), device="/job:worker/task:0", assign_to=here, add_to=there)
    moved.at("/job:worker/task:1")(np.ones(2))
    np.testing.assert_array_equal([here.read(), there.read()], [[3, 3], [8, 8]])
    with pytest.raises(sg.VariableMismatch, match="both name"):
        session.function(jnp.sin, assign_to=here, add_to=here)
    with pytest.raises(sg.VariableMismatch, match="of other shapes"):
        moved.at("/job:worker/task:1", assign_to=[session.variable(0.0)])


def test_an_error_surfaces_once_and_cancels_what_is_queued(session: sg.Session) -> None:
    hold, is_in = threading.Event(), threading.Semaphore(0)

    def failing() -> Callable[[jax.Array], jax.Array]:
        def fails(x: jax.Array) -> jax.Array:
            is_in.release()
            hold.wait(30)  # while it is traced, on the client: so that others are queued behind it
            raise ValueError("the closure's own error")

        return fails

    with sg.ClusterCoordinator(session, queue_size=100) as coordinator:
        failures = [coordinator.schedule(failing(), (1.0,)) for _ in range(2)]
        assert is_in.acquire(timeout=30)
        assert is_in.acquire(timeout=30)
        queued = [coordinator.schedule(jnp.sin, (0.0,)) for _ in range(5)]
        assert not coordinator.done()
        hold.set()
        with pytest.raises(ValueError, match="the closure's own error"):
            coordinator.join()
        for value in failures:
            with pytest.raises(ValueError, match="the closure's own error"):
                value.fetch(timeout=30)
        for value in queued:
            with pytest.raises(sg.ClosureCancelled, match="another one failed"):
                value.fetch(timeout=30)
        assert coordinator.done(), "the error has been told"
        assert coordinator.schedule(jnp.cos, (0.0,)).fetch(timeout=60) == 1.0


def test_the_errors_of_workers_come_out_of_schedule_and_done(
    coordinator: sg.ClusterCoordinator, session: sg.Session
) -> None:
    w = session.variable(1.0, device="/job:ps/task:0")
    w.delete()
    with pytest.raises(sg.VariableNotFound):
        for _ in range(1000):
            coordinator.schedule(jnp.sin, (w,))
    first = coordinator.schedule(jnp.sin, (w,))
    with pytest.raises(sg.VariableNotFound):
        first.fetch(timeout=60)
    with pytest.raises(sg.VariableNotFound):
        until("the error to be told", coordinator.done)


def test_schedule_waits_while_the_queue_is_full(session: sg.Session) -> None:
    hold, is_in = threading.Event(), threading.Semaphore(0)

    def held(x: jax.Array) -> jax.Array:
        is_in.release()
        hold.wait(30)
        return x

    coordinator = sg.ClusterCoordinator(session, queue_size=1)
    scheduled: list[sg.RemoteValue] = []

    def fill() -> None:
        for n in range(4):
            scheduled.append(coordinator.schedule(held, (float(n),)))

    filling = threading.Thread(target=fill)
    filling.start()
    assert is_in.acquire(timeout=30)
    until("two to run and one to be queued", lambda: len(scheduled) == 3)
    assert filling.is_alive()
    hold.set()
    filling.join(60)
    coordinator.join()
    assert coordinator.fetch(scheduled) == [0.0, 1.0, 2.0, 3.0]
    coordinator.close()
    with pytest.raises(sg.ClosureCancelled, match="closed"):
        coordinator.schedule(held, (0.0,))


def test_each_worker_has_its_own_data(coordinator: sg.ClusterCoordinator, cluster: ServedCluster) -> None:
    dataset = coordinator.create_per_worker_dataset("coordinator_data:counted")
    batches = iter(dataset)

    def show(batch: dict[str, jax.Array], factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        return batch["process"], batch["x"] * factor

    def seen(values: list[sg.RemoteValue]) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for process, x in coordinator.fetch(values):
            assert (x == x[0]).all(), "a batch that was overwritten by the next"
            found.setdefault(int(process), []).append(float(x[0]))
        return found

    first = seen([coordinator.schedule(show, (batches, 1.0)) for _ in range(30)])
    assert set(first) == {cluster.pid("worker", index) for index in range(2)}
    for numbers in first.values():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), (
            "each batch once, in order, from the start"
        )
    second = seen([coordinator.schedule(show, (iter(dataset), 10.0)) for _ in range(4)])
    assert {number for numbers in second.values() for number in numbers} == {10.0}, (
        "a pass of its own for each"
    )
    shown = {
        tuple(each)
        for each in coordinator.fetch(
            [
                coordinator.schedule(
                    lambda place: place,
                    (iter(coordinator.create_per_worker_dataset("coordinator_data:places")),),
                )
                for _ in range(10)
            ]
        )
    }
    assert shown <= {(0, 2), (1, 2)}


def test_batches_of_several_shapes_and_the_end(session: sg.Session) -> None:
    with sg.ClusterCoordinator(session) as coordinator:
        batches = iter(coordinator.create_per_worker_dataset("coordinator_data:uneven"))
        sums = []
        with pytest.raises(sg.DataError, match=r"ended on this worker after 3 batches: let it repeat"):
            for _ in range(7):
                sums.append(coordinator.schedule(jnp.sum, (batches,)))
                coordinator.join()
        assert sorted(float(value.fetch()) for value in sums[:3]) in ([2, 3, 3], [3, 3, 3])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("coordinator_data:broken", "the file of digits is damaged"),
        ("coordinator_data:missing", "defines no function 'missing'"),
        ("coordinator_data:getpid", "defines no function 'getpid'"),
        ("os:getcwd", r"may not import 'os' .* started with: coordinator_data.*--allow-import os"),
        ("coordinator_data.inner:x", "may not import 'coordinator_data.inner'"),
    ],
)
def test_datasets_that_cannot_be_made(
    coordinator: sg.ClusterCoordinator, function: str, message: str
) -> None:
    batches = iter(coordinator.create_per_worker_dataset(function))
    coordinator.schedule(jnp.sum, (batches,))
    with pytest.raises(sg.StratagemError, match=message):
        coordinator.join()


def test_a_worker_is_killed_and_comes_back(cluster: ServedCluster, session: sg.Session) -> None:
    count = 300
    effects = session.variable(np.zeros(count, np.float32), device="/job:ps/task:0")
    with sg.ClusterCoordinator(session) as coordinator:
        batches = iter(coordinator.create_per_worker_dataset("coordinator_data:counted"))

        def work(batch: dict[str, jax.Array], number: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            spun = jax.lax.fori_loop(0, 200_000, lambda _, x: jnp.sin(x) + 1, batch["x"][0] * 0)
            return jnp.zeros(count).at[number].set(1.0 + 0 * spun), batch["process"], batch["x"][0]

        def ran_on(pid: int) -> list[float]:
            seen = [value.fetch() for value in values if value.is_there()]
            return [float(x) for process, x in seen if int(process) == pid]

        values: list[sg.RemoteValue] = []
        for number in range(count):
            values.append(coordinator.schedule(work, (batches, number), add_to=effects))
            if number == 40:
                until("it to have run some", partial(ran_on, cluster.pid("worker", 0)))
                cluster.kill("worker", 0)
            if number == 80:
                cluster.start("worker", 0)
                back = cluster.pid("worker", 0)
        coordinator.join()
        assert (effects.read() >= 1).all(), "every closure has had its effect, at least once"
        while not ran_on(back):  # it takes a while to start: give it something to do when it has
            values.append(coordinator.schedule(work, (batches, 0), add_to=effects))
            coordinator.join()
        assert min(ran_on(back)) == 1.0, "it has made its dataset anew"


def test_idle_workers_are_killed(cluster: ServedCluster, session: sg.Session) -> None:
    with sg.ClusterCoordinator(session) as coordinator:
        coordinator.fetch([coordinator.schedule(jnp.sin, (0.0,)) for _ in range(10)])
        cluster.kill("worker", 1)
        values = [coordinator.schedule(jnp.cos, (0.0,)) for _ in range(10)]
        coordinator.join()
        assert coordinator.fetch(values) == [1.0] * 10, "by the other one"
        cluster.kill("worker", 0)
        values = [coordinator.schedule(jnp.cos, (0.0,)) for _ in range(4)]
        assert not coordinator.done()
        for index in range(2):
            cluster.start("worker", index)
        coordinator.join()
        assert coordinator.fetch(values) == [1.0] * 4, "by those who came back"


def test_a_server_that_is_gone_is_an_error_and_no_reason_to_try_elsewhere(
    cluster: ServedCluster, session: sg.Session
) -> None:
    w = session.variable(1.0, device="/job:ps/task:1")
    cluster.kill("ps", 1)
    with sg.ClusterCoordinator(session, timeout=6) as coordinator:
        coordinator.schedule(jnp.sin, (w,))
        with pytest.raises(sg.RemoteError, match="/job:ps/task:1"):
            coordinator.join()
    cluster.start("ps", 1)
