"""CONTRIBUTING.md names where to start reading each package, and the way of one scan."""

import ast
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from support.batch_world import scan, tiny_model
from support.product_source import LAYERS, ROOT, product
from typer.testing import CliRunner

from cuda_cyclegan.cli.app import app

MOST_STOPS = 20
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def functions_in(section: str) -> list[tuple[Path, str]]:
    """Files and names that the table of a section links."""
    text = TEXT.partition(f"### {section}\n")[2].partition("\n### ")[0]
    found = re.findall(r"^\|.*\[`([\w.]+)`\]\(([\w/.]+)\)", text, re.M)
    return [(ROOT / file, name) for name, file in found]


STARTS, STOPS = functions_in("Where to start reading"), functions_in("The way of one scan")


def names_in(file: Path) -> Iterator[str]:
    """Names of the functions, classes and their methods in a module."""
    for node in product()[file].body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            yield from (f"{node.name}.{each.name}" for each in methods)


def test_each_package_has_a_start_and_each_name_exists() -> None:
    packages = [path.parent for path in product() if path.name == "__init__.py"]
    assert sorted(file.parent for file, _ in STARTS) == sorted(packages)
    assert {ROOT / layer for layer in LAYERS} <= {file.parent for file, _ in STARTS}
    assert [name for file, name in (*STARTS, *STOPS) if name not in names_in(file)] == []


@pytest.mark.slow
def test_a_scan_passes_each_stop_in_this_order(tmp_path: Path) -> None:
    scan(tmp_path / "scans" / "a.nii")
    model, called = tiny_model(tmp_path / "model.safetensors"), dict[tuple[str, str], None]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname))

    command = ["translate", str(tmp_path / "scans"), "--model", str(model), "--device", "cpu"]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        ended = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "results")])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert ended.exit_code == 0
    assert 0 < len(STOPS) <= MOST_STOPS
    stops = [(str(file), name) for file, name in STOPS]
    assert [each for each in called if each in stops] == stops
