"""Variables of a deployed model on the parameter servers of a running cluster; parts of a model on its tasks."""

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stratagem as sg
from drills.cluster import ServedCluster
from drills.nursery import Nursery
from stratagem.classic.deploy import CloneScope, DeploymentConfig, deploy

TRUE = np.array([1.0, -2.0, 3.0], np.float32)


@pytest.fixture(scope="module")
def cluster(nursery: Nursery) -> Iterator[ServedCluster]:
    with ServedCluster({"ps": 2, "worker": 2}, nursery=nursery) as served:
        yield served


@pytest.fixture
def session(cluster: ServedCluster) -> Iterator[sg.Session]:
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as opened:
        yield opened


def batches() -> Iterator[Any]:
    random = np.random.default_rng(0)
    while True:
        x = random.standard_normal((4, 3)).astype(np.float32)
        yield x, x @ TRUE + 0.5


def regression(scope: CloneScope, batch: Any) -> None:
    x, y = batch
    w, b = scope.variable("w", (3,)), scope.variable("b", ())
    mean = scope.variable("mean", (3,), trainable=False)
    scope.add_update("mean", 0.5 * mean + 0.5 * x.mean(axis=0))
    scope.add_loss(((x @ w + b - y) ** 2).mean())


def test_variables_live_on_the_servers_in_turn_and_train_as_if_they_were_here(session: sg.Session) -> None:
    remote = deploy(
        DeploymentConfig(num_clones=2, clone_on_cpu=True, num_ps_tasks=2),
        regression,
        [batches()],
        optimizer=optax.adam(0.1),
        session=session,
    )
    local = deploy(
        DeploymentConfig(num_clones=2, clone_on_cpu=True), regression, [batches()], optimizer=optax.adam(0.1)
    )
    assert [clone.device for clone in remote.clones] == ["/job:worker/device:CPU:0"] * 2
    variables, expected = remote.clones[0].variables, local.clones[0].variables
    task = {name: variable.device.split("/")[3] for name, variable in variables.items()}
    assert task == {
        "w": "task:0",
        "b": "task:1",
        "mean": "task:0",
        "global_step": "task:0",
        "optimizer/0/count": "task:0",
        "optimizer/0/mu/b": "task:1",  # beside its variable
        "optimizer/0/mu/w": "task:0",
        "optimizer/0/nu/b": "task:1",
        "optimizer/0/nu/w": "task:0",
    }
    assert all(isinstance(variable, sg.RemoteVariable) for variable in variables.values())
    assert remote.train_op is not None and local.train_op is not None and remote.total_loss is not None
    for _ in range(5):
        np.testing.assert_allclose(remote.train_op(), local.train_op(), rtol=1e-5)
    for name in expected:
        np.testing.assert_allclose(variables[name].read(), expected[name].read(), rtol=1e-5)
    with sg.device("/job:ps/task:1"):  # anybody finds them there by their names
        np.testing.assert_allclose(session.get_variable("b").read(), expected["b"].read(), rtol=1e-5)


def test_replicas_train_the_same_variables_and_lose_no_update(cluster: ServedCluster) -> None:
    steps = 20
    failures: list[BaseException] = []

    def model_fn(scope: CloneScope) -> None:
        scope.add_loss(scope.variable("shared", (4,)).sum())  # its gradient is 1, whoever was there before

    def replica(index: int) -> None:
        config = DeploymentConfig(clone_on_cpu=True, replica_id=index, num_replicas=2, num_ps_tasks=1)
        try:
            with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as session:
                model = deploy(config, model_fn, optimizer=optax.sgd(1.0), session=session)
                assert model.train_op is not None
                both_ready.wait()
                for _ in range(steps):
                    model.train_op()
        except BaseException as error:  # noqa: BLE001  the test raises it
            failures.append(error)
            both_ready.abort()

    both_ready = threading.Barrier(2, timeout=60)
    with sg.Session(cluster.target("ps", 0), secret=cluster.secret) as session:
        stale = session.variable(np.int32(0), "global_step", "/job:ps/task:0")
        stale.delete()
        threads = [threading.Thread(target=replica, args=(index,)) for index in (1, 0)]  # the first one last
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=100)
        assert not failures, failures
        with sg.device("/job:ps/task:0"):
            assert session.get_variable("global_step").read() == 2 * steps
            np.testing.assert_array_equal(session.get_variable("shared").read(), [-2 * steps] * 4)


def test_replicas_with_another_model_are_told(session: sg.Session) -> None:
    session.variable(np.zeros(3, np.float32), "odd", "/job:ps/task:0")
    config = DeploymentConfig(clone_on_cpu=True, replica_id=1, num_replicas=2, num_ps_tasks=1)
    with pytest.raises(
        sg.VariableMismatch, match=r"'odd' is float32\[3\] on /job:ps/task:0, and float32\[2\] here"
    ):
        deploy(config, lambda scope: scope.variable("odd", (2,)), session=session)


def lower(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def upper(w: Any, h: Any, y: Any) -> Any:
    return jnp.mean((h @ w - y) ** 2)


def test_parts_of_a_model_on_two_tasks(session: sg.Session) -> None:
    """Activations go from the first task to the second, their gradients back, and neither past the client."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((64, size)).astype(np.float32) for size in (4, 2))
    whole: Any = {
        "lower": random.standard_normal((4, 256)).astype(np.float32),
        "upper": random.standard_normal((256, 2)).astype(np.float32) / 16,
    }
    first, second = "/job:worker/task:0", "/job:worker/task:1"
    w_lower = session.variable(whole["lower"], "lower", first)
    w_upper = session.variable(whole["upper"], "upper", second)
    activations = session.variable(np.zeros((64, 256), np.float32), "activations", second)
    returned = session.variable(np.zeros((64, 256), np.float32), "returned", first)

    def upper_step(w: Any, h: Any, y: Any) -> Any:
        loss, (dw, dh) = jax.value_and_grad(upper, argnums=(0, 1))(w, h, y)
        return w - 0.1 * dw, dh, loss

    def lower_step(w: Any, x: Any, dh: Any) -> Any:
        return w - 0.1 * jax.vjp(lambda w: lower(w, x), w)[1](dh)[0]

    forward = session.function(lower, first, assign_to=[activations])
    turn = session.function(upper_step, second, assign_to=[w_upper, returned])
    backward = session.function(lower_step, first, assign_to=[w_lower])

    @jax.jit
    def whole_step(whole: Any) -> Any:
        loss, grads = jax.value_and_grad(lambda each: upper(each["upper"], lower(each["lower"], x), y))(whole)
        return jax.tree.map(lambda value, grad: value - 0.1 * grad, whole, grads), loss

    for _ in range(5):
        forward(w_lower, x)
        loss = turn(w_upper, activations, y)
        backward(w_lower, x, returned)
        whole, expected = whole_step(whole)
        np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(w_lower.read(), whole["lower"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(w_upper.read(), whole["upper"], rtol=1e-3, atol=1e-5)
    assert (w_lower.task, w_upper.task) == (first, second)
