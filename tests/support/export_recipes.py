"""The recipes of docs/onnx.md for an ONNX file, run as they stand there."""

import re
from contextlib import chdir
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"


def recipes() -> tuple[str, str, str]:
    """Export by the older exporter, by the newer one, and what tracked norms need before."""
    section = PAGE.read_text().partition("\n## Export\n")[2].partition("\n## ")[0]
    older, newer, norms = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    return older, newer, norms


def followed(generator: Any, *steps: str, folder: Path) -> Path:
    """The ONNX file that recipes write of a network."""
    import torch
    from support.onnx_networks import silent

    with chdir(folder), silent():
        for step in steps:
            exec(step, {"torch": torch, "generator": generator})
    return folder / "generator.onnx"
