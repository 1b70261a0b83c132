# One model, a tower on each device, gradients averaged by hand on the host.
# python examples/towers.py        on what there is: GPUs, or virtual devices of the CPU
# python examples/towers.py gpu    on GPUs; those that are missing are replaced by the CPU (soft placement)
import sys
from typing import Any

import jax
import numpy as np
import optax

import stratagem as sg

TOWERS = 2
sg.configure(virtual_devices=TOWERS, soft_placement=True, log_device_placement=True)
kind = sys.argv[1] if len(sys.argv) > 1 else sg.list_devices()[-1].spec.device_type  # accelerators come last
digits = sg.data.load_digits()
optimizer = optax.adam(1e-2)


def loss_fn(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    scores = batch[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]).mean()


def update(params: Any, state: Any, tower_grads: list[Any]) -> tuple[Any, Any]:
    changes, state = optimizer.update(sg.average_gradients(tower_grads), state, params)
    return optax.apply_updates(params, changes), state


towers = []
for i in range(TOWERS):
    with sg.device(f"/{kind}:{i}"):
        towers.append(sg.on_device(jax.value_and_grad(loss_fn), name=f"tower_{i}"))
apply = sg.on_device(update, "/cpu:0")

params = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}
state = optimizer.init(params)
for epoch in range(5):
    order = np.random.default_rng(epoch).permutation(1408)
    for rows in np.split(order, 11):  # global batches of 128 rows
        shares = np.split(rows, TOWERS)
        # No call waits for its result: all towers compute at the same time.
        results = [
            tower(params, (digits.train_images[own], digits.train_labels[own]))
            for tower, own in zip(towers, shares, strict=True)
        ]
        params, state = apply(params, state, [grads for _, grads in results])
    print(f"epoch {epoch}: loss {np.mean([loss for loss, _ in results]):.4f}")
