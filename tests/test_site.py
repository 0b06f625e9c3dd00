"""The documentation site: its search answers the questions that users ask."""

import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from support.chromium import needs_chromium, opened_page, wait_until
from support.product_source import ROOT

ANSWERS = {
    "CUT checkpoint CBCT": "cbct-to-ct-cut",
    "two GPUs": "two-gpus",
    "GPU memory": "gpu-memory",
    "Slurm Dask Kubernetes": "clusters",
    "scan skipped": "skipped-scans",
    "int16 results": "int16",
    "redo one result": "redo-one",
    "clean up": "clean-up",
    "SeriesDescription": "series-description",
    "cite": "cite",
    "MONAI bundle nnU-Net folder": "monai-nnunet",
    "compare two models": "compare-models",
    "morning failed": "failed-morning",
    "BIDS App": "bids-app",
    "3D Slicer": "slicer",
}
"""Words of a question, and the page that answers it."""


@pytest.mark.slow
@needs_chromium
def test_the_search_finds_the_answer_to_each_question_first(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    sources = tmp_path / "docs"
    shutil.copytree(ROOT, tmp_path, dirs_exist_ok=True, ignore=_other_than_pages)
    command = [sys.executable, "-m", "sphinx", "--quiet", str(sources), str(tmp_path / "site")]
    subprocess.run(command, check=True, cwd=tmp_path)
    found: dict[str, str] = {}
    with served(tmp_path / "site") as address, opened_page(faults=None) as page:
        for words in ANSWERS:
            page.goto(f"{address}/search.html?q={words.replace(' ', '+')}")
            wait_until(page, "document.querySelectorAll('ul.search li a').length > 0")
            wait_until(page, "!document.querySelector('#search-progress')?.innerText.trim()")
            link = page.locator("ul.search li a").first.get_attribute("href") or ""
            found[words] = Path(link.partition("?")[0].partition("#")[0]).stem
    assert found == ANSWERS


@contextmanager
def served(folder: Path) -> Generator[str]:
    """Address of a folder's files on this machine; a page may not fetch files without a server."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _other_than_pages(folder: str, names: list[str]) -> set[str]:
    """Names at the top of the repository that no page shows."""
    shown = {"docs", "sample_data", "README.md", "CHANGELOG.md"}
    return {*names} - shown if Path(folder) == ROOT else set()
