"""What Keras computes with in a script that is started plainly, where nobody has chosen anything."""

import os
import subprocess
import sys
from pathlib import Path


def said(directory: Path, lines: str, **chosen: str) -> str:
    """What a script prints in a home where Keras has never been, its errors included."""
    environ = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    script = directory / "script.py"
    script.write_text(lines)
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**environ, "HOME": str(directory), "KERAS_HOME": str(directory), **chosen},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.stdout + ended.stderr


def test_jax_once_stratagem_has_been_used(tmp_path: Path) -> None:
    lines = """
import os
before = dict(os.environ)
import stratagem as sg
assert dict(os.environ) == before, "an import changes nothing"
sg.configure()
import keras
with sg.OneDeviceStrategy().scope():
    keras.Sequential([keras.layers.Dense(1)])
print("backend", keras.backend.backend())
"""
    assert "backend jax" in said(tmp_path, lines)


def test_what_the_user_has_chosen_stays_and_a_scope_says_what_to_do(tmp_path: Path) -> None:
    lines = """
import stratagem as sg
strategy = sg.OneDeviceStrategy()
import keras
model = keras.Sequential([keras.layers.Dense(1)])
for refused in (strategy.scope().__enter__, lambda: strategy.adopt(model)):
    try:
        refused()
    except sg.StrategyError as error:
        print(error)
"""
    out = said(tmp_path, lines, KERAS_BACKEND="numpy")
    assert (
        out.count("Keras computes with numpy, and strategies need JAX: set KERAS_BACKEND=jax before") == 2
    ), out
