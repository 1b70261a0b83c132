"""What the documentation says is so: the code blocks of every page run, and print what the page shows."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from document_runs import Forks, environment, run_page
from documents import is_translation, pages, runs_of

PAGES = [page for page in pages() if page.startswith("docs/") and not is_translation(page) and runs_of(page)]


@pytest.fixture(scope="module")
def ends(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> Iterator[dict[str, Future[int]]]:
    """Runs the pages that were asked for, as many at a time as there are cores."""
    asked = [
        str(item.callspec.params["page"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {
            page: pool.submit(run_page, page, tmp_path_factory.mktemp("page"), environment(), forks)
            for page in asked
        }
        pool.shutdown(wait=False, cancel_futures=True)


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, ends: dict[str, Future[int]]) -> None:
    assert ends[page].result()


def test_there_are_pages() -> None:
    assert len(PAGES) > 10


def test_compiled_programs_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, running every page takes minutes more."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    (tmp_path / "page").mkdir()
    run_page("docs/strategies/one_device.md", tmp_path / "page", environment())
    assert list((tmp_path / "compiled").iterdir())
