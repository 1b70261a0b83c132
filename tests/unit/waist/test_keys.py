"""Random keys in the state of an optimizer: integers everywhere, keys where it is updated."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stratagem.waist import new_state
from stratagem.waist.optimizers import Keys


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.key(3, impl="rbg"), 3])
def test_an_optimizer_with_a_key_updates_as_optax_does(key: jax.Array | int) -> None:
    params = {"w": jnp.arange(3.0), "b": jnp.ones(2)}
    optimizer = optax.chain(optax.add_noise(0.1, 0.5, key), optax.adam(0.1))
    state = new_state(params, optimizer)
    assert not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in state.flat_opt_state)
    leaves, arrays = state.flat_params, state.flat_opt_state
    theirs = optimizer.init(params)
    for _ in range(3):
        leaves, arrays = jax.jit(state.recipe.updater.update)(leaves, arrays, leaves)
        updates, theirs = jax.jit(optimizer.update)(params, theirs, params)
        params = optax.apply_updates(params, updates)
    for mine, other in zip(leaves, jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_arrays_of_keys_and_other_leaves() -> None:
    leaves = [jnp.ones(2), jax.random.split(jax.random.key(0), 3), 1.5]
    keys = Keys(leaves)
    assert list(keys) == [1]
    assert len(keys) == 1
    integers = keys.as_integers(leaves)
    assert integers[1].shape == (3, 2)
    assert (keys.as_keys(integers)[1] == leaves[1]).all()
    assert integers[2] == 1.5
