"""How operations are named in messages."""

import runpy
from pathlib import Path

import jax
import numpy as np

from stratagem.parameters.split.jaxprs import operation

CODE = """
def norm(x):
    return (x * x).sum()

def update_fn(x):
    return x / norm(x)
"""


def test_a_users_function_is_named_wherever_the_user_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "stratagem" / "optimizers.py"  # as in a clone under the project's own name
    path.parent.mkdir()
    path.write_text(CODE)
    jaxpr = jax.make_jaxpr(runpy.run_path(str(path))["update_fn"])(np.ones(3, np.float32))
    (total,) = (each for each in jaxpr.eqns if each.primitive.name == "reduce_sum")
    text = operation(total)
    assert text.startswith(f"`reduce_sum` at {path}:3")
    assert text.endswith(", for update_fn")
