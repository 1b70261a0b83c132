import jax
import numpy as np
import optax

import stratagem as sg

strategy = (
    sg.MultiWorkerMirroredStrategy()
)  # or any other; without other workers, all devices of this machine
digits = sg.data.load_digits()


def loss_fn(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    scores = batch[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]).mean()


state = strategy.init({"w": np.zeros((64, 10)), "b": np.zeros(10)}, optax.adam(1e-2))
step = strategy.train_step(loss_fn)
for epoch in range(5):
    order = np.random.default_rng(epoch).permutation(len(digits.train_labels))
    rows = np.array_split(order, 12)  # twelve global batches, of 120 rows and of 119
    for batch in strategy.distribute((digits.train_images[each], digits.train_labels[each]) for each in rows):
        state, metrics = step(state, batch)
    if strategy.is_chief:
        print(f"epoch {epoch}: loss {metrics['loss']:.4f}")
strategy.close()
