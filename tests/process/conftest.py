"""Scripts of users, for tests that run them as processes."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ScriptWriter = Callable[[str], Path]


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> ScriptWriter:
    """Writes a script: the test module's PRELUDE, then what the test gives."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(request.module.PRELUDE + textwrap.dedent(body))
        return path

    return write
