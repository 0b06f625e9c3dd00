"""The figures of docs/: each is what its script draws today."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"


def drawn(script: str, folder: Path) -> None:
    """Run a script of docs/figures, which draws into a folder."""
    command = [sys.executable, str(FIGURES / script), str(folder)]
    subprocess.run(
        command, check=True, capture_output=True, env={"PYTHONPATH": str(ROOT / "tests")}
    )


def texts(file: Path) -> list[str]:
    """Return the texts in a drawing, which hold its figures."""
    return re.findall(r"<text[^>]*>([^<]+)</text>", file.read_text("utf-8"))


@pytest.mark.process
def test_the_architecture_is_that_of_the_layout_table(tmp_path: Path) -> None:
    drawn("architecture.py", tmp_path)
    stored = FIGURES / "architecture.svg"
    is_current = (tmp_path / stored.name).read_text("utf-8") == stored.read_text("utf-8")
    assert is_current, "run PYTHONPATH=tests python docs/figures/architecture.py"


@pytest.mark.slow
def test_the_charts_show_the_stored_results(tmp_path: Path) -> None:
    drawn("charts.py", tmp_path)
    for name in ("speed.svg", "memory.svg"):
        assert texts(tmp_path / name) == texts(FIGURES / name) != []


@pytest.mark.slow
def test_the_pictures_can_be_made_again(tmp_path: Path) -> None:
    drawn("pictures.py", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"preview.png", "blending.png"}
