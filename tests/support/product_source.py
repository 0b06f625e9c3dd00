"""Source files of the product, as the tests of its structure read them."""

import ast
import gc
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from support.tiers import uncounted

ROOT = Path(__file__).parents[2]
LAYERS = ("cli", "engine", "io", "pipelines")


@cache
def product() -> Mapping[Path, ast.Module]:
    """Every module of the layers, parsed: once for all tests, so its time counts for none.

    The trees stay, and looking for garbage among their 400,000 nodes takes as long as parsing:
    the collector leaves them alone.
    """
    with uncounted():
        gc.disable()
        found = {
            path: ast.parse(path.read_text())
            for layer in LAYERS
            for path in sorted((ROOT / layer).rglob("*.py"))
        }
        gc.freeze()
        gc.enable()
    return found
