"""The random streams of a Flax NNX model (`nnx.Rngs`: dropout, noise) when several workers train it.

A stream is a key and a counter, which moves on with every draw; both are state of the model. Workers begin with equal
ones. For each to draw its own numbers, the key of the step that a strategy hands out is folded into the streams' keys for
the length of a step. A process that trains alone leaves the keys as they are, and so draws what plain Flax draws.
"""

from typing import Any

import jax
import jax.numpy as jnp

from stratagem.waist import Arrays, Keys


class RandomStreams:
    """The streams in a model's state, by the places of their keys, and the number of steps they have been through."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def counter(self) -> Arrays:
        """Return the state to keep beside the model's: the number of steps, if there are keys at all."""
        return [jnp.uint32(0)] if self._keys else []

    def for_step(self, others: Arrays, counter: Arrays, rng: jax.Array) -> Arrays:
        """Return the state with this worker's keys for one step."""
        if not self._keys:
            return others
        is_alone = _is_alone(rng, *counter)
        bits = jax.random.bits(rng)
        return [
            jnp.where(is_alone, other, self._fold(number, other, bits)) if number in self._keys else other
            for number, other in enumerate(others)
        ]

    def after_step(self, before: Arrays, after: Arrays, counter: Arrays) -> Arrays:
        """Return the state and the counter to go on with: keys as they were before, and the counts of draws as after."""
        others = [before[number] if number in self._keys else other for number, other in enumerate(after)]
        return [*others, *(each + 1 for each in counter)]

    def _fold(self, number: int, integers: Any, bits: jax.Array) -> jax.Array:
        keys = self._keys.key(number, integers)
        folded = jax.vmap(jax.random.fold_in, (0, None))(keys.reshape(-1), bits)
        return jax.random.key_data(folded.reshape(keys.shape))


def _is_alone(rng: jax.Array, step: Any) -> Any:
    """Return whether this is a step's whole key under the default seed, not a worker's share of it or of another seed."""
    whole = jax.random.fold_in(jax.random.key(0), step)
    return jnp.all(jax.random.key_data(rng) == jax.random.key_data(whole))
