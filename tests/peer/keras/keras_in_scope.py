"""A pytest plugin that runs other people's tests of Keras in the scope of a strategy.

python -m pytest -p keras_in_scope --scope Mirrored --pyargs keras.src.trainers; without --scope there is none.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest

import stratagem as sg

os.environ["KERAS_BACKEND"] = "jax"
sg.configure(virtual_devices=2)

_DISTRIBUTED = "a keras.distribution is refused in a scope"
EXCEPTIONS: dict[str, str] = {
    "::test_jit_fit_with_out_shardings_logic_distributed": _DISTRIBUTED,
    "::test_distributed_checkpoint_functionality": _DISTRIBUTED,
    "::test_distributed_checkpoint_resharding": _DISTRIBUTED,
    "::test_custom_summary": "a strategy compiles its step also with jit_compile=False: no layer can look at values",
    "::test_legacy_load_skips_missing_nested_containers": "the file that it reads is not in the package of Keras",
}
"""Which tests fail, by the ends of their names, and why: these have to fail, and all others have to pass."""


def _always(*args: Any) -> Any:
    return lambda test: test


_conftest = ModuleType("conftest")  # that of Keras's repository is not in its package
_conftest.skip_if_backend = _always  # type: ignore[attr-defined]
sys.modules["conftest"] = _conftest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scope", help="the strategy, such as Mirrored")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name, reason in EXCEPTIONS.items():
            if item.nodeid.endswith(name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session")
def strategy(request: pytest.FixtureRequest) -> Any:
    name = request.config.getoption("--scope")
    return getattr(sg, f"{name}Strategy")() if name else None


@pytest.fixture(autouse=True)
def in_scope(strategy: Any) -> Iterator[None]:
    import keras  # noqa: F401  the scope is one of Keras's only then

    with strategy.scope() if strategy else nullcontext():
        yield
