"""A run of pytest with this suite's own `conftest.py`, for tests of what that adds."""

import os
import subprocess
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def run(directory: Path, code: str, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """Run tests that are written as one file into a directory."""
    (directory / "conftest.py").write_text((_TESTS / "conftest.py").read_text())
    (directory / "test_some.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, directory],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), str(_TESTS.parent)])},
        capture_output=True,
        text=True,
        timeout=120,
    )
