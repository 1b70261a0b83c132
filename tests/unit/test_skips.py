"""`--known-skips-only`: a test that is left out for a reason nobody has written down fails the run."""

from pathlib import Path

import pytest

import skips
from unit import inner_pytest

KNOWN = "import pytest\ndef test_it(): pytest.skip('docker compose is not installed')\n"
UNKNOWN = "import pytest\ndef test_it(): pytest.skip('I had no time')\n"
WHOLE = "import pytest\npytest.importorskip('a_package_that_is_not_here')\n"
GOOD = "def test_good(): pass\n"


@pytest.mark.parametrize(
    ("code", "options", "status"),
    [
        (KNOWN, ["--known-skips-only"], 0),
        (UNKNOWN, [], 0),
        (UNKNOWN, ["--known-skips-only"], 1),
        (UNKNOWN, ["--known-skips-only", "--numprocesses", "1"], 1),
    ],
)
def test_unknown_skips_fail_the_run(tmp_path: Path, code: str, options: list[str], status: int) -> None:
    done = inner_pytest.run(tmp_path, code + GOOD, *options)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("I had no time" in done.stdout.partition("not in tests/skips.py")[2]) == (status == 1)


def test_a_module_that_is_left_out_whole_fails_it_too(tmp_path: Path) -> None:
    done = inner_pytest.run(tmp_path, WHOLE + GOOD, "--known-skips-only")
    assert done.returncode != 0
    assert "a_package_that_is_not_here" in done.stdout.partition("not in tests/skips.py")[2]


def test_every_known_reason_is_one_that_tests_give() -> None:
    sources = [
        path.read_text()
        for directory in (Path(skips.__file__).parent, Path(skips.__file__).parents[1] / "drills")
        for path in directory.rglob("*.py")
        if path.name not in ("skips.py", "test_skips.py")
    ]
    for reason in skips.KNOWN:
        assert any(reason in source for source in sources), reason
