"""The random streams of a Flax NNX model (`nnx.Rngs`: dropout, noise) when several workers train it.

A stream is a key and a counter, which moves on with every draw; both are state of the model. Workers begin with
equal ones: for each to draw its own, the key of the step that a strategy hands out is folded into the streams' keys
for the length of a step. A process that trains alone leaves them as they are, and so draws what plain Flax draws.
"""

from typing import Any

import jax
import jax.numpy as jnp

from stratagem.waist import Arrays, Keys


class Streams:
    """The streams in a model's state, and how many steps they have been through.

    Args:
        keys: Where in the state their keys are.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def counter(self) -> Arrays:
        """What to keep beside the model's state: the number of steps, if there are keys at all."""
        return [jnp.uint32(0)] if self._keys else []

    def for_step(self, others: Arrays, counter: Arrays, rng: jax.Array) -> Arrays:
        """The state with this worker's keys for one step."""
        if not self._keys:
            return others
        is_alone = _is_alone(rng, *counter)
        drawn = jax.random.bits(rng)
        return [
            jnp.where(is_alone, other, self._folded(number, other, drawn)) if number in self._keys else other
            for number, other in enumerate(others)
        ]

    def after_step(self, before: Arrays, after: Arrays, counter: Arrays) -> Arrays:
        """The state and the counter to go on with: keys stay as they were, and what counts draws moves on."""
        kept = [before[number] if number in self._keys else other for number, other in enumerate(after)]
        return [*kept, *(each + 1 for each in counter)]

    def _folded(self, number: int, integers: Any, drawn: jax.Array) -> jax.Array:
        keys = self._keys.key(number, integers)
        folded = jax.vmap(jax.random.fold_in, (0, None))(keys.reshape(-1), drawn)
        return jax.random.key_data(folded.reshape(keys.shape))


def _is_alone(rng: jax.Array, step: Any) -> Any:
    """Whether this is the whole key of a step, no worker's share of it, under the seed that nobody has set."""
    whole = jax.random.fold_in(jax.random.key(0), step)
    return jnp.all(jax.random.key_data(rng) == jax.random.key_data(whole))
