"""Property tests take as long as the machine needs; tests may say what they prove (see `proofs`).

What tests start hears of every signal, also where the tests themselves were told to ignore some (`nohup`, `&`).
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import proofs
from drills.processes import let_children_be_signalled
from skips import Skips

let_children_be_signalled()
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_PROPERTY = "proves"


@pytest.fixture
def proves(record_property: Callable[[str, object], None]) -> proofs.Proves:
    """Called with a training API and a strategy: if the test passes, the one is proved under the other."""

    def proves(api: str, strategy: str) -> None:
        record_property(_PROPERTY, (api, strategy))

    return proves


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--proved", type=Path, help="add to this file what the tests prove that pass")
    parser.addoption(
        "--known-skips-only",
        action="store_true",
        help="fail if a test is skipped for a reason not in tests/skips.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    if config.getoption("--proved") is not None:
        config.pluginmanager.register(_Collector(config.getoption("--proved")))
    if config.getoption("--known-skips-only"):
        config.pluginmanager.register(Skips())


class _Collector:
    """Keeps what passed tests prove."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._proofs: set[proofs.Proof] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            for name, value in report.user_properties:
                if name == _PROPERTY and isinstance(value, tuple | list):
                    api, strategy = value
                    self._proofs.add((api, strategy))

    def pytest_sessionfinish(self) -> None:
        proofs.keep(self._path, self._proofs)
