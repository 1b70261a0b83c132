"""Random streams of a model: each worker's own for the length of a step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stratagem.flax.random_streams import RandomStreams
from stratagem.waist import Keys

WHOLE = jax.random.fold_in(jax.random.key(0), 5)
STEP = [jnp.uint32(5)]


def streams(*keys: jax.Array) -> tuple[RandomStreams, list[Any]]:
    found = Keys([jnp.ones(2), *keys])
    return RandomStreams(found), found.as_integers([jnp.ones(2), *keys])


def test_a_process_alone_draws_from_the_keys_as_they_are() -> None:
    found, state = streams(jax.random.key(3))
    np.testing.assert_array_equal(found.for_step(state, STEP, WHOLE)[1], state[1])


@pytest.mark.parametrize(
    "key",
    [
        jax.random.key(3),
        jax.random.key(3, impl="rbg"),
        jax.random.split(jax.random.key(3), 4),
        jax.random.split(jax.random.key(3), (2, 3)),
    ],
    ids=["one", "another implementation", "several", "a table"],
)
def test_workers_draw_from_keys_of_their_own(key: jax.Array) -> None:
    found, state = streams(key)
    shares = [jax.random.fold_in(WHOLE, index) for index in (0, 1, 0)]
    one, other, again = (np.asarray(found.for_step(state, STEP, share)[1]) for share in shares)
    np.testing.assert_array_equal(one, again)
    every = np.stack([np.asarray(state[1]), one, other]).reshape(3 * key.size, -1)
    assert len(np.unique(every, axis=0)) == 3 * key.size
    assert one.shape == state[1].shape


def test_keys_stay_and_counters_move_on() -> None:
    found, state = streams(jax.random.key(3))
    after = [jnp.zeros(2), jnp.zeros(2, jnp.uint32)]
    kept = found.after_step(state, after, STEP)
    np.testing.assert_array_equal(kept[0], after[0])
    np.testing.assert_array_equal(kept[1], state[1])
    assert kept[2] == 6


def test_a_model_without_streams_has_no_counter() -> None:
    found, state = streams()
    assert found.counter() == []
    assert found.for_step(state, [], WHOLE) is state
    assert found.after_step(state, state, []) == state


def test_keys_come_back_as_what_they_were() -> None:
    leaves = [jax.random.key(1, impl="rbg"), jnp.ones(1), jax.random.split(jax.random.key(2), 3)]
    keys = Keys(leaves)
    back = keys.as_keys(keys.as_integers(leaves))
    assert [each.dtype for each in back] == [each.dtype for each in leaves]
    np.testing.assert_array_equal(jax.random.key_data(back[2]), jax.random.key_data(leaves[2]))
