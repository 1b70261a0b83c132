"""Scripts of users, for tests that run them as processes, and compile little."""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from document_runs import Forks
from drills.nursery import Nursery
from drills.quick_compiling import XLA_FLAGS

TESTS = Path(__file__).resolve().parents[1]
ScriptWriter = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Most of what a small job takes is compiling: no process does it thoroughly, or where another has before."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # by all testers
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", XLA_FLAGS)
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(shared / "compiled"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Forks tasks, for tests that need many and none that is fresh: it has imported what they need."""
    with Nursery([TESTS], modules=["flax.nnx", "flax.linen", "equinox"]) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def keras_nursery() -> Iterator[Nursery]:
    """One whose tasks need not import Keras."""
    with Nursery([TESTS], modules=["unit.keras.cases"], environ={"KERAS_BACKEND": "jax"}) as nursery:
        yield nursery


@pytest.fixture(scope="session")
def forks(nursery: Nursery, keras_nursery: Nursery) -> Forks:
    """Both, for the commands of pages."""
    return Forks(nursery, keras_nursery)


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path) -> ScriptWriter:
    """Writes a script: the test module's PRELUDE, then what the test gives."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(request.module.PRELUDE + textwrap.dedent(body))
        return path

    return write
