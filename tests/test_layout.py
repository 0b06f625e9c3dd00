"""The rooms: which packages exist, and who may import whom."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("cli", "engine", "io", "pipelines")
MAY_IMPORT = {
    "cli": {"cli", "pipelines", "engine", "io"},
    "pipelines": {"pipelines", "engine", "io"},
    "engine": {"engine"},
    "io": {"io"},
}
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).glob("*.py"))


def rooms_imported(source: str, room: str) -> set[str]:
    """Rooms that a module in `room` imports, relatively or as cuda_cyclegan.x."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 1:
                found.add(room)
            elif node.level == 2:
                found.update([module.split(".")[0]] if module else [n.name for n in node.names])
            elif module.startswith("cuda_cyclegan"):
                found.update(
                    [
                        *module.split(".")[1:2],
                        *([] if "." in module else [n.name for n in node.names]),
                    ]
                )
        elif isinstance(node, ast.Import):
            names = [name.name.split(".") for name in node.names]
            found.update(
                parts[1] for parts in names if parts[0] == "cuda_cyclegan" and len(parts) > 1
            )
    return found & set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_imports_point_one_way(path: Path) -> None:
    room = path.parent.name
    assert rooms_imported(path.read_text(), room) <= MAY_IMPORT[room]


@pytest.mark.parametrize(
    "statement",
    [
        "from ..engine import cpu",
        "from .. import engine",
        "import cuda_cyclegan.engine.onnxruntime.session",
        "from cuda_cyclegan.engine.onnxruntime.session import CpuGenerator",
        "from cuda_cyclegan import engine",
    ],
)
def test_a_forbidden_import_is_seen(statement: str) -> None:
    assert rooms_imported(statement, "io") == {"engine"}


def test_every_room_is_packaged_and_flat() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    assert packages == ["cuda_cyclegan", *(f"cuda_cyclegan.{room}" for room in ROOMS)]
    nested = [p for room in ROOMS for p in (ROOT / room).glob("*/**/*.py")]
    assert nested == []


def test_the_root_holds_no_other_module() -> None:
    assert [path.name for path in ROOT.glob("*.py")] == ["__main__.py"]
