"""`TPUStrategy` over several hosts, as far as that goes without a TPU: two processes, two virtual devices each."""

from drills.nursery import Nursery
from process.conftest import ScriptWriter

PRELUDE = """
import stratagem as sg
sg.configure(virtual_devices=2)
import jax.numpy as jnp, numpy as np, optax

random = np.random.default_rng(0)
batches = [random.standard_normal((rows, 5)).astype(np.float32) for rows in [8, 6, 7, 1, 4]]

def train(strategy, batches):
    params = {"w": np.full((5, 3), 0.1, np.float32), "b": np.ones(3, np.float32)}
    state = strategy.init(params, optax.adam(0.1))
    step = strategy.train_step(lambda params, batch: jnp.mean((batch @ params["w"] - params["b"]) ** 2))
    for batch in batches:
        state, _ = step(state, batch)
    return strategy.fetch(state)
"""


def test_two_hosts_train_as_one_device(nursery: Nursery, script: ScriptWriter) -> None:
    path = script("""
        strategy = sg.TPUStrategy()
        assert strategy.num_replicas_in_sync == 4
        found = train(strategy, strategy.distribute(batches * 4))
        expected = train(sg.OneDeviceStrategy(), batches * 4)
        assert found.step == expected.step == 20
        for name in found.params:
            np.testing.assert_allclose(found.params[name], expected.params[name], rtol=1e-5, atol=1e-6)
        print("the same", strategy.is_chief)
    """)
    out = nursery.said("stratagem", "run", "--workers", "2", path)
    assert sorted(line[-5:].strip() for line in out.splitlines() if "the same" in line) == ["False", "True"]
