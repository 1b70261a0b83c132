"""`stratagem.data` loads its names when they are asked for, and never JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import stratagem.data


def test_both_lists_agree() -> None:
    tree = ast.parse(Path(str(stratagem.data.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.asname or alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == stratagem.data._HOMES
    for name in dir(stratagem.data):
        assert getattr(stratagem.data, name).__doc__, name


def test_loads_nothing_that_it_does_not_need() -> None:
    code = """
import sys, stratagem.data
assert 'numpy' not in sys.modules
for name in dir(stratagem.data):
    getattr(stratagem.data, name)
sys.exit('jax' in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
