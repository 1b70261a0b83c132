import itertools

import jax
import numpy as np
import optax

import stratagem as sg

strategy = sg.ParameterServerStrategy(update=sg.Async())  # or sg.Sync(), or sg.BoundedStaleness(4)
digits = sg.data.load_digits()


def loss_fn(params: dict[str, jax.Array], batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    scores = batch[0] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch[1]).mean()


state = strategy.init({"w": np.zeros((64, 10)), "b": np.zeros(10)}, optax.adam(1e-2))
step = strategy.train_step(loss_fn)
random = np.random.default_rng(0)
draws = (random.integers(len(digits.train_labels), size=120) for _ in itertools.count())
for batch in strategy.distribute((digits.train_images[rows], digits.train_labels[rows]) for rows in draws):
    state, metrics = step(state, batch)
    if metrics["global_step"] >= 400:  # whoever brought it there
        break
params = strategy.fetch(state).params
correct = (digits.test_images @ params["w"] + params["b"]).argmax(axis=1) == digits.test_labels
print(f"{metrics['global_step']} updates, accuracy {correct.mean():.3f}")
strategy.close()
