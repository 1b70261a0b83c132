"""TensorFlow's parameter servers: between-graph replication as in its distributed guide, made as quick as we could.

The batches are constants on the worker, prefetched, a step is a prepared call that fetches nothing, and sessions see only their
own worker and the servers.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.parameter_servers.fashion_mnist import test_set, training_batches
from benchmarks.parameter_servers.task import Placed, Run, Task
from benchmarks.racing.work import LEARNING_RATE, Labels, Pictures

v1 = tf.compat.v1
v1.disable_eager_execution()


def serve(task: Placed) -> None:
    """Be a parameter server for as long as the harness wants."""
    make_server(task).join()


def asynchronous(task: Task) -> Run:
    return _loop(task, _constants(task))


def synchronous(task: Task) -> Run:
    return _loop(task, _constants(task), synchronously=True)


def fashion(task: Task) -> Run:
    """On real pictures; instead of the loss it tells the accuracy that the servers' parameters have come to."""
    types = tf.TensorSpec((None, 784), tf.float32), tf.TensorSpec((None,), tf.int32)
    data = tf.data.Dataset.from_generator(lambda: training_batches(task.index), output_signature=types)
    return _loop(task, data, tested_on=test_set())


def _loop(task: Task, data: Any, synchronously: bool = False, tested_on: Any = None) -> Run:
    server = make_server(task)
    workers = len(task.cluster["worker"])
    is_chief = task.index == 0
    with on_servers(task):
        global_step = v1.train.get_or_create_global_step()
        feed, (pictures, labels) = fed(task, data.repeat())
        layers = [
            tuple(
                v1.get_variable(f"{name}_{number}", initializer=array, use_resource=True)
                for name, array in zip(("matrix", "vector"), layer, strict=True)
            )
            for number, layer in enumerate(task.work.layers())
        ]
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, _scores(layers, pictures))
        )
        optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)
        if synchronously:
            optimizer = v1.train.SyncReplicasOptimizer(optimizer, workers, workers)
        train = optimizer.minimize(loss, global_step=global_step)
        hook = optimizer.make_session_run_hook(is_chief) if synchronously else None
        if hook is not None:
            hook.begin()
        reported = loss if tested_on is None else _accuracy(layers, tested_on)
    return training(task, server, feed, train, reported, hook)


def make_server(task: Placed) -> Any:
    """The server that every task runs, parameter servers and workers alike."""
    return v1.train.Server(
        tf.train.ClusterSpec(task.cluster), task.job, task.index, protocol="grpc", config=_config(task)
    )


def _config(task: Placed) -> Any:
    config = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{task.index}"])
    if task.job == "ps":
        config = v1.ConfigProto()
    if task.threads is not None:
        config.intra_op_parallelism_threads = task.threads
    return config


def on_servers(task: Placed) -> Any:
    """Where variables are made on the servers, and everything else on this worker."""
    return v1.device(v1.train.replica_device_setter(cluster=task.cluster, worker_device=_own(task)))


def _own(task: Placed) -> str:
    return f"/job:worker/task:{task.index}"


def fed(task: Placed, data: Any) -> tuple[Any, Any]:
    """An iterator over data on this worker, prefetched, and what it gives."""
    with v1.device(_own(task)):
        feed = v1.data.make_initializable_iterator(data.prefetch(tf.data.AUTOTUNE))
        return feed, feed.get_next()


def training(task: Placed, server: Any, feed: Any, train: Any, reported: Any, hook: Any = None) -> Run:
    """What trains, once all variables are there; the chief gives them their first values.

    Args:
        task: What to do.
        server: This worker's.
        feed: What it reads.
        train: One step.
        reported: The value to report after steps, besides the global step.
        hook: What a synchronous optimizer wants to be called.
    """
    with on_servers(task):
        initial = v1.global_variables_initializer()
        missing = v1.report_uninitialized_variables(v1.global_variables())
        local = [v1.local_variables_initializer(), feed.initializer]
    session = v1.Session(server.target, config=_config(task))
    if task.index == 0:
        session.run(initial)
    while len(session.run(missing)):
        pass
    session.run(local)
    if hook is not None:
        hook.after_create_session(session, v1.train.Coordinator())
    step = session.make_callable(train)
    look = session.make_callable([v1.train.get_global_step(), reported])

    def run(turns: Iterable[object]) -> tuple[int, float]:
        for _ in turns:
            step()
        at, value = look()
        return int(at), float(value)

    return run


def _scores(layers: Any, pictures: Any) -> Any:
    *hidden, (matrix, vector) = layers
    values = pictures
    for weights, bias in hidden:
        values = tf.nn.relu(tf.matmul(values, weights) + bias)
    return tf.matmul(values, matrix) + vector


def _accuracy(layers: Any, tested_on: tuple[Pictures, Labels]) -> Any:
    pictures, labels = (tf.constant(array) for array in tested_on)
    guesses = tf.argmax(_scores(layers, pictures), axis=1, output_type=tf.int32)
    return tf.reduce_mean(tf.cast(tf.equal(guesses, labels), tf.float32))


def _constants(task: Task) -> Any:
    """The batches of this worker as constants of its graph, each one element."""
    batches = (
        task.work.share(task.index, task.work.replicas) if task.work.replicas > 1 else task.work.batches()
    )
    return tf.data.Dataset.from_tensor_slices(
        tuple(np.stack(arrays) for arrays in zip(*batches, strict=True))
    )
