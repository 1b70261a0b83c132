"""TensorFlow's strategies, with the custom training loop of its guide.

Gradients are applied by TensorFlow's own optimizer, which is well ahead of Keras's here, and every replica's
batches come from a dataset of whole batches, which spares it the cutting of them.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.racing.work import LEARNING_RATE, Labels, Pictures
from benchmarks.strategies.task import Run, Task

DEVICES = ["CPU:0", "CPU:1"]


def mirrored(task: Task) -> Run:
    _prepare(task, len(DEVICES))
    return _loop(tf.distribute.MirroredStrategy(DEVICES), task)


def mirrored_by_copies(task: Task) -> Run:
    """With a reduction that is not the default on CPUs."""
    _prepare(task, len(DEVICES))
    reduction = tf.distribute.HierarchicalCopyAllReduce()
    return _loop(tf.distribute.MirroredStrategy(DEVICES, cross_device_ops=reduction), task)


def central_storage(task: Task) -> Run:
    _prepare(task, len(DEVICES))
    return _loop(tf.distribute.experimental.CentralStorageStrategy(DEVICES, DEVICES[0]), task)


def multi_worker(task: Task) -> Run:
    """The cluster comes from TF_CONFIG."""
    _prepare(task, 1)
    return _loop(tf.distribute.MultiWorkerMirroredStrategy(), task)


def _prepare(task: Task, devices: int) -> None:
    if task.threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def _loop(strategy: Any, task: Task) -> Run:
    with strategy.scope():
        variables = [tf.Variable(array) for layer in task.work.layers() for array in layer]
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)

    def replica_step(pictures: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            values = pictures
            *hidden, (matrix, vector) = zip(variables[::2], variables[1::2], strict=True)
            for weights, bias in hidden:
                values = tf.nn.relu(tf.matmul(values, weights) + bias)
            scores = tf.matmul(values, matrix) + vector
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=task.work.rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def global_step(batch: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, batch), axis=None)

    step = tf.function(global_step)

    def dataset(context: Any) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(_replica_batches(task, context.num_input_pipelines))
        return batches.repeat().prefetch(tf.data.AUTOTUNE)

    feed = iter(strategy.distribute_datasets_from_function(dataset))

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = step(next(feed))
        return float(loss)

    return run


def _replica_batches(task: Task, pipelines: int) -> tuple[Pictures, Labels]:
    """This process's batches, cut for its replicas and stacked."""
    batches = task.work.batches() if pipelines == 1 else task.work.share(task.index, len(task.addresses))
    pictures, labels = (np.stack(arrays) for arrays in zip(*batches, strict=True))
    rows = task.work.rows // task.work.replicas
    return pictures.reshape(-1, rows, pictures.shape[-1]), labels.reshape(-1, rows)
