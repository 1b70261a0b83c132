"""One inspecting process for all tests here: they ask it for a few thousand programs."""

from collections.abc import Iterator

import pytest

from stratagem.runtime.programs import Inspector, ProgramCache


@pytest.fixture(scope="session")
def inspector() -> Iterator[Inspector]:
    with Inspector() as process:
        yield process


@pytest.fixture
def cache(inspector: Inspector) -> Iterator[ProgramCache]:
    with ProgramCache(inspector=inspector) as programs:
        yield programs
