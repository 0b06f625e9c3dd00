"""The recipes of docs/onnx.md and docs/torch-export.md, run as they stand there."""

import re
from contextlib import chdir
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def recipes() -> tuple[str, str, str]:
    """Export by the older exporter, by the newer one, and what tracked norms need before."""
    older, newer, norms = _steps(DOCS / "onnx.md")
    return older, newer, norms


def torch_recipe() -> str:
    """Export by torch.export."""
    [recipe] = _steps(DOCS / "torch-export.md")
    return recipe


def _steps(page: Path) -> list[str]:
    section = page.read_text().partition("\n## Export\n")[2].partition("\n## ")[0]
    return re.findall(r"```text\n(.*?)```", section, re.DOTALL)


def followed(generator: Any, *steps: str, folder: Path) -> Path:
    """The ONNX file that recipes write of a network."""
    import torch
    from support.onnx_networks import silent

    with chdir(folder), silent():
        for step in steps:
            exec(step, {"torch": torch, "generator": generator})
    return folder / "generator.onnx"
