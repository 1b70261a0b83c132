"""A language model of a few million parameters, trained on the text of Python's own help; on as many workers as there are.

python examples/language_model.py
stratagem run --workers 2 examples/language_model.py
"""

import argparse
from pydoc_data.topics import topics  # half a megabyte of English, in every Python
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import stratagem as sg

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--length", type=int, default=128, help="characters that the model looks back on")
parser.add_argument("--batch_size", type=int, default=32, help="of all workers together")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--accumulate", type=int, default=1, help="steps that make one update")
parser.add_argument("--half", action="store_true", help="compute in bfloat16")
parser.add_argument(
    "--remat", action="store_true", help="compute layers twice rather than keep what they made"
)
parser.add_argument("--shard_state", action="store_true", help="share out the optimizer's state among all")
options = parser.parse_args()

text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
numbers = np.array([alphabet.index(letter) for letter in text], np.int32)
held_out = len(numbers) // 10  # characters at the end, which are not trained on

strategy = sg.MultiWorkerMirroredStrategy(shard_state=options.shard_state)


def init(key: jax.Array) -> Any:
    width = options.width
    keys = iter(jax.random.split(key, 4 * options.layers + 2))
    draw = lambda *shape: 0.02 * jax.random.normal(next(keys), shape)  # noqa: E731
    layers = [
        {
            "qkv": draw(width, 3 * width),
            "out": draw(width, width),
            "up": draw(width, 4 * width),
            "down": draw(4 * width, width),
        }
        for _ in range(options.layers)
    ]
    return {"letters": draw(len(alphabet), width), "places": draw(options.length, width), "layers": layers}


def layer_of(x: jax.Array, layer: Any) -> jax.Array:
    parts = jnp.split(jax.nn.standardize(x) @ layer["qkv"], 3, axis=-1)
    query, key, value = (part.reshape(*part.shape[:2], 4, -1) for part in parts)  # 4 heads
    seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    x = x + seen.reshape(x.shape) @ layer["out"]
    return x + jax.nn.gelu(jax.nn.standardize(x) @ layer["up"]) @ layer["down"]


def scores(params: Any, letters: jax.Array) -> jax.Array:
    if options.half:
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    x = params["letters"][letters] + params["places"]
    for layer in params["layers"]:
        x = (jax.checkpoint(layer_of) if options.remat else layer_of)(x, layer)
    return (jax.nn.standardize(x) @ params["letters"].T).astype(jnp.float32)


def loss_fn(params: Any, batch: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, batch[:, :-1]), batch[:, 1:]).mean()


def drawn(random: np.random.Generator, first: int, last: int) -> np.ndarray:
    starts = random.integers(first, last - options.length - 1, size=(options.batch_size, 1))
    return numbers[starts + np.arange(options.length + 1)]


random = np.random.default_rng(0)
batches = (drawn(random, 0, len(numbers) - held_out) for _ in range(options.steps))
updates = options.steps // options.accumulate
schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, updates // 10 + 1, updates)
optimizer = optax.MultiSteps(optax.adamw(schedule), options.accumulate)
state = strategy.init(init(jax.random.key(0)), optimizer)
step = strategy.train_step(loss_fn)
for number, batch in enumerate(strategy.distribute(batches), 1):
    state, metrics = step(state, batch)
    if strategy.is_chief and (number % 50 == 0 or number == options.steps):
        print(f"step {number}: loss {metrics['loss']:.3f}", flush=True)

params = strategy.fetch(state).params
if strategy.is_chief:
    loss = jax.jit(loss_fn)(params, drawn(random, len(numbers) - held_out, len(numbers)))
    print(f"{optax.tree.size(params):,} parameters, loss {loss:.3f} on text never seen")
strategy.close()
