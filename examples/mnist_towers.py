"""The classic multi-tower script: one process, a copy of the model on each device, gradients averaged by hand.

    python examples/mnist_towers.py [--num_towers 2] [--steps 600] [--train_dir DIR] [--idx_dir DIR]

TFRecord input, L2 loss, a learning rate that decays, moving averages of the variables, summaries and checkpoints: run
it again with the same --train_dir and more --steps, and it goes on from where it was. On a machine without GPUs the
towers stand on virtual CPU devices.
"""

import argparse
import tempfile
import time

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--num_towers", type=int, default=2)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--batch_size", type=int, default=64, help="of each tower")
parser.add_argument("--train_dir", default=None, help="for records, summaries and checkpoints")
parser.add_argument("--idx_dir", default=None, help="with MNIST's or Fashion-MNIST's four files")
options = parser.parse_args()

sg.configure(virtual_devices=options.num_towers, soft_placement=True)  # must come before JAX starts

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from mnist_records import CLASSES, Records  # noqa: E402

L2, MOVING_AVERAGE, HIDDEN = 1e-4, 0.99, 100
train_dir = options.train_dir or tempfile.mkdtemp(prefix="mnist_towers-")
records = Records(f"{train_dir}/records", options.idx_dir)
devices = sg.list_devices()
kind = "gpu" if any(device.spec.device_type == "GPU" for device in devices) else "cpu"
places = [device.device for device in devices if device.spec.device_type == kind.upper()]
towers = {f"/{kind}:{tower}": places[tower] for tower in range(options.num_towers)}


def scores(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["hidden/weights"] + params["hidden/biases"])
    return hidden @ params["softmax/weights"] + params["softmax/biases"]


@jax.jit
def tower_loss(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    images, labels = batch
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels(scores(params, images), labels).mean()
    return cross_entropy + L2 * sum(jnp.sum(params[name] ** 2) for name in params if "weights" in name)


random = np.random.default_rng(0)
params = {
    "hidden/weights": random.normal(0, 0.1, (records.pixels, HIDDEN)).astype(np.float32),
    "hidden/biases": np.zeros(HIDDEN, np.float32),
    "softmax/weights": random.normal(0, 0.1, (HIDDEN, CLASSES)).astype(np.float32),
    "softmax/biases": np.zeros(CLASSES, np.float32),
}
rate = optax.exponential_decay(0.3, transition_steps=200, decay_rate=0.8, staircase=True)
strategy = sg.OneDeviceStrategy(f"/{kind}:0")  # holds the variables, the optimizer and the moving averages
state = strategy.init(params, optax.sgd(rate), ema_decay=MOVING_AVERAGE)
gradients = jax.jit(jax.value_and_grad(tower_loss))
apply_gradients = jax.jit(lambda state, grads: state.updated(jax.tree.leaves(grads), []))

with sg.Checkpointer(f"{train_dir}/checkpoints") as checkpoints, sg.SummaryWriter(train_dir) as summaries:
    state = checkpoints.restore(like=state) or state
    start = int(state.step)
    batches = records.batches(options.batch_size, seed=start)
    summaries.placement(strategy.placement(state))
    began = time.perf_counter()
    for step in range(start + 1, options.steps + 1):
        losses, tower_grads = [], []
        for tower, place in towers.items():
            with sg.device(tower):  # they compute at the same time: nobody waits here
                loss, grads = gradients(*jax.device_put((state.params, next(batches)), place))
                losses.append(loss)
                tower_grads.append(grads)
        grads = sg.average_gradients(tower_grads)
        state = apply_gradients(state, grads)
        if step % 100 == 0 or step == options.steps:
            loss = float(np.mean([float(loss) for loss in losses]))
            speed = (step - start) * options.batch_size * len(towers) / (time.perf_counter() - began)
            print(
                f"After {step} training steps, loss on training batch is {loss:.6f}. ({speed:.0f} examples/sec)"
            )
            summaries.scalar("loss", loss, step)
            summaries.scalar("learning_rate", float(rate(step)), step)
            summaries.histograms("gradients", grads, step)
            summaries.histograms("variables", state.params, step)
            checkpoints.save(state)

images, labels = records.test_set()
averaged = strategy.fetch(state).ema
correct = np.argmax(scores(averaged, images), axis=1) == labels
print(f"{train_dir}: step {int(state.step)}, accuracy {correct.mean():.3f} with the moving averages")
