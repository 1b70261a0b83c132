"""A language model of a few million parameters, trained on the text of Python's own help; on as many workers as there are.

python examples/language_model.py
stratagem run --workers 2 examples/language_model.py
"""

import argparse
import itertools
import time
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
options = parser.parse_args()

text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
numbers = np.array([alphabet.index(letter) for letter in text], np.int32)
held_out = len(numbers) // 10  # characters at the end, which are not trained on
HEADS = 4

strategy = sg.MultiWorkerMirroredStrategy()


def init(key: jax.Array) -> Any:
    width = options.width
    draw = lambda *shape: 0.02 * jax.random.normal(jax.random.fold_in(key, next(count)), shape)  # noqa: E731
    count = itertools.count()
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


def normalized(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def scores(params: Any, letters: jax.Array) -> jax.Array:
    x = params["letters"][letters] + params["places"]
    for layer in params["layers"]:
        parts = jnp.split(normalized(x) @ layer["qkv"], 3, axis=-1)
        query, key, value = (part.reshape(*part.shape[:2], HEADS, -1) for part in parts)
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + seen.reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
    return normalized(x) @ params["letters"].T


def loss_fn(params: Any, batch: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(scores(params, batch[:, :-1]), batch[:, 1:]).mean()


def drawn(random: np.random.Generator, first: int, last: int) -> np.ndarray:
    starts = random.integers(first, last - options.length - 1, size=(options.batch_size, 1))
    return numbers[starts + np.arange(options.length + 1)]


random = np.random.default_rng(0)
batches = (drawn(random, 0, len(numbers) - held_out) for _ in range(options.steps))
schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, options.steps // 10 + 1, options.steps)
state = strategy.init(init(jax.random.key(0)), optax.adamw(schedule))
step = strategy.train_step(loss_fn)
began = time.monotonic()
for number, batch in enumerate(strategy.distribute(batches), 1):
    state, metrics = step(state, batch)
    if strategy.is_chief and (number % 50 == 0 or number == options.steps):
        speed = number * options.batch_size * options.length / (time.monotonic() - began)
        print(f"step {number}: loss {metrics['loss']:.3f}, {speed:,.0f} characters/s", flush=True)

params = strategy.fetch(state).params
if strategy.is_chief:
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    loss = jax.jit(loss_fn)(params, drawn(random, len(numbers) - held_out, len(numbers)))
    print(f"{size:,} parameters, loss {loss:.3f} on text never seen")
strategy.close()
