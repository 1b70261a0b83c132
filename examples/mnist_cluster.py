"""The classic between-graph script: 1 parameter server, some workers, each running this file.

    stratagem run --ps 1 --workers 3 examples/mnist_cluster.py --train_dir DIR [--sync] [--steps 600]

or each task by hand, with the flags that such scripts always had (or TF_CONFIG):

    python examples/mnist_cluster.py --train_dir DIR --job_name=ps --task_id=0 --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222

After 600 steps about 95 % of the embedded digits are right. The chief writes checkpoints and summaries to --train_dir, and a job that is started again goes on from there.
"""

import argparse

import jax
import numpy as np
import optax
from mnist_records import CLASSES, Records

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600, help="of all workers together")
parser.add_argument("--batch_size", type=int, default=64, help="of each worker")
parser.add_argument("--sync", action="store_true", help="one update from the gradients of all workers")
parser.add_argument("--train_dir", required=True, help="for records, summaries and checkpoints")
parser.add_argument("--idx_dir", default=None, help="with MNIST's or Fashion-MNIST's four files")
options, _ = parser.parse_known_args()  # --job_name and its like are read by the strategy

strategy = sg.ParameterServerStrategy(
    update=sg.Sync() if options.sync else sg.Async()
)  # a ps serves here, and exits
records = Records(f"{options.train_dir}/records", options.idx_dir)
HIDDEN = 100


def scores(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["hidden/weights"] + params["hidden/biases"])
    return hidden @ params["softmax/weights"] + params["softmax/biases"]


def loss_fn(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    images, labels = batch
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()


random = np.random.default_rng(0)
params = {
    "hidden/weights": random.normal(0, 0.1, (records.pixels, HIDDEN)).astype(np.float32),
    "hidden/biases": np.zeros(HIDDEN, np.float32),
    "softmax/weights": random.normal(0, 0.1, (HIDDEN, CLASSES)).astype(np.float32),
    "softmax/biases": np.zeros(CLASSES, np.float32),
}
rate = optax.exponential_decay(0.3, transition_steps=200, decay_rate=0.8, staircase=True)
state = strategy.init(params, optax.sgd(rate), ema_decay=0.99)
step = strategy.train_step(loss_fn)

with (
    sg.Checkpointer(f"{options.train_dir}/checkpoints") as checkpoints,
    sg.SummaryWriter(options.train_dir, strategy=strategy) as summaries,
):
    state = checkpoints.restore(like=state) or state
    saved = int(state.step)
    summaries.cluster(strategy.cluster)
    summaries.placement(strategy.placement(state))
    # Every worker has batches of its own.
    feed = strategy.distribute_from_function(
        lambda context: records.batches(options.batch_size, seed=1000 * saved + context.input_pipeline_id)
    )
    shown = sg.progress(feed, resumed_at=saved, every=100, strategy=strategy)
    for batch in shown if saved < options.steps else ():
        state, metrics = step(state, batch)
        shown.tell(metrics)
        summaries.training(metrics)
        if metrics["global_step"] % 100 == 0:
            summaries.status(strategy.status(), metrics["global_step"])
        if metrics["global_step"] - saved >= 200:
            checkpoints.save(state)
            saved = metrics["global_step"]
        if metrics["global_step"] >= options.steps:
            break
    checkpoints.save(state)

images, labels = records.test_set()
found = strategy.fetch(state)
correct = np.argmax(scores(found.ema, images), axis=1) == labels
print(f"{int(found.step)} global steps, accuracy {correct.mean():.3f} with the moving averages")
strategy.close()
