"""Central variables on several CPU devices: each is there once, in pieces, and whole for whoever uses it."""

import subprocess
import sys

from process.conftest import ScriptWriter

PRELUDE = """
import stratagem as sg
sg.configure(virtual_devices=4)
import jax, jax.numpy as jnp, numpy as np, optax

strategy = sg.CentralStorageStrategy()
initial = {"w": np.arange(24, dtype=np.float32).reshape(8, 3), "b": np.zeros(3, np.float32)}
state = strategy.init(initial, optax.adam(0.1), ema_decay=0.9)
step = strategy.train_step(lambda params, batch: jnp.mean((batch @ params["w"] + params["b"] - 1) ** 2))
for number in range(3):
    state, metrics = step(state, np.full((5, 8), number, np.float32))
fetched = strategy.fetch(state)
"""


def test_each_variable_is_there_once_and_whole_where_it_is_used(script: ScriptWriter) -> None:
    path = script("""
        for leaf in (state.params["w"], state.ema["w"], state.opt_state[0].mu["w"]):
            assert [shard.data.shape for shard in leaf.addressable_shards] == [(2, 3)] * 4, leaf.sharding
        assert state.params["b"].is_fully_replicated, "three do not go into four"
        seen = strategy.run(lambda params: params["w"] * 1, state.params)
        for value in strategy.local_results(seen):
            np.testing.assert_array_equal(value, fetched.params["w"])
        assert not np.array_equal(fetched.params["w"], initial["w"])
        print("done")
    """)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
