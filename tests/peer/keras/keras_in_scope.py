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

EXCEPTIONS: dict[str, str] = {}
"""Which tests fail, by a part of their names, and why; all others have to pass, and these have to fail."""


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
            if name in item.nodeid:
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
