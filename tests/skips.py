"""Tests that may be left out where they cannot run; with `--known-skips-only` any other one that is skipped fails the run.

A test that is skipped everywhere proves nothing, and nobody notices: so each reason stands here, with what it would take.
"""

import pytest

KNOWN = {
    "docker compose is not installed": "needs Docker's own tools; the form of the file is tested everywhere",
    "this kernel cannot delay or lose packets": "needs the kernel's sch_netem; lines that delay stand in for it",
}
"""How the reason of a skip begins, and why that is no loss."""


class Skips:
    """Collects why tests were skipped, and fails the run for reasons that are not known."""

    def __init__(self) -> None:
        self._unknown: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One test, or its set-up."""
        self._look(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """One module, which may be skipped whole."""
        self._look(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail, if all else is well."""
        if self._unknown and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which."""
        if self._unknown:
            terminalreporter.section("skipped for a reason that is not in tests/skips.py", red=True)
            for line in self._unknown:
                terminalreporter.line(line)

    def _look(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if not reason.startswith(tuple(KNOWN)):
                self._unknown.append(f"{report.nodeid}: {reason}")
