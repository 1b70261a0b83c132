import jax
import numpy as np

import stratagem as sg

x = np.random.default_rng(0).standard_normal((256, 3)).astype(np.float32)
y = x @ np.array([1.0, -2.0, 3.0], np.float32)


def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    return w - 0.1 * gradient, loss


with sg.Session(f"sg://{sg.resolve_cluster().cluster.task_address('ps', 0)}") as session:
    w = session.variable(np.zeros(3), name="w", device="/job:ps/task:0")
    train = session.function(step, device="/job:worker/task:1", assign_to=[w])
    print("losses", [round(float(train(w, x, y)), 4) for _ in range(5)], "w", w.read())
