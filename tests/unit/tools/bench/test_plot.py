"""The curves: what they are drawn from, and the files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratagem.errors import LaunchError
from stratagem.tools.bench.report import Series, check_plot, losses, speeds, write_plot
from unit.tools.bench.measured import failed, result

RESULTS = [
    result("one-device", 1, [1000]),
    result("mirrored", 2, [1500]),
    result("async", 1, [900], staleness=0.0),
    result("async", 2, [1700], staleness=1.0),
    failed("sync", 2),
]


def test_loss_over_seconds_of_all_who_finished() -> None:
    curve = ((0.1, 2.0), (0.2, 0.5))
    assert losses(RESULTS) == [
        Series("one device", "one-device", curve),
        Series("mirrored, 2 devices", "mirrored", curve),
        Series("servers, async, 1 worker", "async", curve),
        Series("servers, async, 2 workers", "async", curve),
    ]


def test_speed_over_replicas_begins_with_one_device_unless_measured() -> None:
    assert speeds(RESULTS) == [
        Series("mirrored", "mirrored", ((1, 1000), (2, 1500))),
        Series("servers, async", "async", ((1, 900), (2, 1700))),
        Series("ideal", "ideal", ((1, 1000), (2, 2000))),
    ]


def test_a_png(tmp_path: Path) -> None:
    write_plot(tmp_path / "curves.png", RESULTS, "784-500-10", [])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_page_that_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "curves.html"
    write_plot(page, RESULTS, "a <title>", ["Use sg.MirroredStrategy()."])
    text = page.read_text()
    assert "a &lt;title&gt;" in text
    assert "<svg" in text
    assert "<td>servers, async, 2 workers</td>" in text
    assert "Use sg.MirroredStrategy()." in text
    # Names of XML's dialects look like addresses, and are not fetched.
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", text)
    assert not re.findall(r"url\((?!#)", text)
    assert "<script" not in text
    assert "@import" not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [("curves.pdf", r"ends in \.png or \.html"), ("nowhere/curves.png", "there is no directory")],
)
def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        check_plot(tmp_path / name)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from stratagem.tools.launch.cli import main; "
        f"sys.argv = ['stratagem', 'bench', '--plot', {str(tmp_path / 'curves.png')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'stratagem[plot]'" in done.stderr
    assert "Traceback" not in done.stderr
