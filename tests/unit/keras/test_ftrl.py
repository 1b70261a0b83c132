"""The FTRL of canned estimators, beside Keras's, which is TensorFlow's."""

import jax.numpy as jnp
import keras
import numpy as np
import optax

from stratagem.classic.estimator.canned import ftrl


def test_ftrl_is_that_of_keras() -> None:
    random = np.random.default_rng(0)
    first = random.standard_normal((4, 3)).astype(np.float32)
    variable = keras.Variable(first)
    theirs = keras.optimizers.Ftrl(0.2, initial_accumulator_value=0.1)
    ours, params = ftrl(0.2), {"w": jnp.asarray(first)}
    state = ours.init(params)
    for _ in range(5):
        grad = random.standard_normal((4, 3)).astype(np.float32)
        theirs.apply([jnp.asarray(grad)], [variable])
        updates, state = ours.update({"w": jnp.asarray(grad)}, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params["w"], np.asarray(variable.value), rtol=1e-5, atol=1e-6)
