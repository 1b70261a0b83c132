"""TensorFlow's embeddings on parameter servers: variables there, `embedding_lookup`, and Adagrad's sparse update."""

from typing import Any

import tensorflow as tf

from benchmarks.parameter_servers.contenders.tensorflow_servers import fed, make_server, on_servers, training
from benchmarks.parameter_servers.contenders.tensorflow_servers import serve as serve
from benchmarks.parameter_servers.task import Run
from benchmarks.tables.task import TableTask
from benchmarks.tables.work import BATCHES, DIM, EXAMPLES, FIRST_ACCUMULATOR, LEARNING_RATE, STRIDE

v1 = tf.compat.v1


def embeddings(task: TableTask) -> Run:
    server = make_server(task)
    with on_servers(task):
        global_step = v1.train.get_or_create_global_step()
        feed, batch = fed(task, _data(task))
        means = [
            tf.reduce_mean(v1.nn.embedding_lookup(_table(name, size), batch[name]), axis=1)
            for name, size in zip(task.work.names(), task.work.sizes, strict=True)
        ]
        vector = v1.get_variable("vector", initializer=task.work.vector(), use_resource=True)
        guesses = tf.linalg.matvec(tf.concat(means, axis=1), vector)
        loss = tf.reduce_mean((guesses - batch["target"]) ** 2)
        optimizer = v1.train.AdagradOptimizer(LEARNING_RATE, FIRST_ACCUMULATOR)
        train = optimizer.minimize(loss, global_step=global_step)
    return training(task, server, feed, train, loss)


def _table(name: str, size: int) -> Any:
    initializer = v1.random_uniform_initializer(-0.05, 0.05)
    return v1.get_variable(name, (size, DIM), initializer=initializer, use_resource=True)


def _data(task: TableTask) -> Any:
    """The batches of this worker: constants of its graph, or computed there where they are always others."""
    work, workers = task.work, len(task.cluster["worker"])
    targets = work.targets(task.index)
    if work.draw != "fresh":
        ids = dict(zip(work.names(), work.ids(task.index), strict=True))
        return tf.data.Dataset.from_tensor_slices({"target": targets, **ids}).repeat()
    count = EXAMPLES * work.per_example
    constants = tf.constant(targets)

    def made(number: Any) -> dict[str, Any]:
        own = tf.reshape(tf.range(count, dtype=tf.int64), work.shape) + number * count
        ids = [(own * workers + task.index) * STRIDE % size for size in work.sizes]
        return {"target": constants[number % BATCHES], **dict(zip(work.names(), ids, strict=True))}

    return tf.data.Dataset.range(1 << 40).map(made)
