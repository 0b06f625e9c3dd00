"""The Containerfile takes along what the package consists of."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {path.name for path in ROOT.glob("*.py")}
PRODUCT = {"cli", "engine", "io", "pipelines", "py.typed"} | MODULES


def test_the_image_holds_the_whole_package() -> None:
    copies = re.findall(r"^COPY (?!--)(.*)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    assert set(" ".join(copies).split()) >= PRODUCT
    kept = (ROOT / ".containerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in kept if line.startswith("!")} >= PRODUCT
