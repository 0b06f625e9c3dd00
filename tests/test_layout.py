"""The structure: which packages exist, and which may import which."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.product_source import LAYERS, ROOT, product


@cache
def modules() -> dict[str, Path]:
    """All modules of the product by their dotted names below the root package."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in product()
    }


@cache
def packages() -> list[str]:
    return sorted(name for name, path in modules().items() if path.name == "__init__.py")


def unit_of(module: str) -> str:
    """Return the unit of the table: a package, or a module that is directly in a layer."""
    package = module.rpartition(".")[0]
    return module if module in packages() or package in LAYERS else package


def imports_of(tree: ast.Module, package: str) -> Iterator[str]:
    """Modules of the product that a module in `package` imports, anywhere in its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            named = [*(base if node.level else ()), *(node.module or "").split(".")]
            if not node.level and named[0] != "cuda_cyclegan":
                continue
            whole = ".".join(named[0 if node.level else 1 :]).rstrip(".")
            for name in node.names:
                below = f"{whole}.{name.name}".lstrip(".")
                yield below if below in modules() else whole
        elif isinstance(node, ast.Import):
            yield from (
                name.name.removeprefix("cuda_cyclegan.")
                for name in node.names
                if name.name.startswith("cuda_cyclegan.")
            )


@pytest.fixture(scope="module")
def module_edges() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    found: dict[str, set[str]] = {}
    for module, path in modules().items():
        package = module if module in packages() else module.rpartition(".")[0]
        imported = imports_of(product()[path], package)
        found[module] = {name for name in imported if name in modules()} - {module}
    return found


@pytest.fixture(scope="module")
def edges(module_edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the units that each unit imports."""
    found: dict[str, set[str]] = {}
    for module, imported in module_edges.items():
        own = unit_of(module)
        found.setdefault(own, set()).update({unit_of(name) for name in imported} - {own})
    return found


MAY_IMPORT = {
    "cli": "",
    "cli.app": "cli.command_table cli.errors cli.options cli.render pipelines.host",
    "cli.command_line": "pipelines.jobs.queue",
    "cli.command_table": "cli.errors cli.options",
    "cli.commands": (
        "cli.command_line cli.descriptors cli.errors cli.options cli.render cli.signals "
        "engine.importing.checkpoint engine.model engine.options engine.startup io.choice "
        "io.discovery io.files io.formats io.found_headers pipelines.calibration "
        "pipelines.cycle pipelines.dask_cluster pipelines.decisions pipelines.doctor "
        "pipelines.dry_run pipelines.early_start pipelines.evaluation pipelines.events "
        "pipelines.host pipelines.model_import pipelines.option pipelines.report pipelines.results "
        "pipelines.settings pipelines.study pipelines.timeline pipelines.translate pipelines.view"
    ),
    "cli.commands.bench": (
        "cli.errors cli.options cli.render cli.signals engine.benchmark engine.network "
        "engine.options pipelines.bench pipelines.config pipelines.errors pipelines.option "
        "pipelines.settings"
    ),
    "cli.commands.queue": (
        "cli.command_line cli.commands cli.errors cli.options cli.render cli.signals "
        "engine.devices io.dicom_network io.errors io.files pipelines.errors "
        "pipelines.events pipelines.host pipelines.jobs pipelines.jobs.queue pipelines.node "
        "pipelines.option pipelines.report pipelines.results pipelines.retries pipelines.run "
        "pipelines.view"
    ),
    "cli.descriptors": "cli.options cli.render pipelines.option pipelines.program",
    "cli.errors": (
        "cli.render engine.errors io.errors io.search pipelines.errors pipelines.host "
        "pipelines.report"
    ),
    "cli.options": (
        "cli.render engine.model engine.options engine.patch_grid io.choice io.files io.formats "
        "io.links io.sidecars pipelines.config pipelines.errors pipelines.jobs.queue "
        "pipelines.model_import pipelines.node pipelines.option pipelines.program "
        "pipelines.request pipelines.results pipelines.settings pipelines.shard "
    ),
    "cli.render": (
        "engine.benchmark engine.cpu engine.decoding engine.importing.checkpoint engine.model "
        "engine.network engine.probe engine.whole_volume io.dicom io.discovery io.files "
        "io.formats io.found_headers io.links io.reading io.search io.volume pipelines.bench "
        "pipelines.calibration pipelines.decisions pipelines.dry_run pipelines.evaluation "
        "pipelines.events pipelines.host pipelines.jobs pipelines.jobs.queue "
        "pipelines.model_import pipelines.node pipelines.program "
        "pipelines.report pipelines.results pipelines.settings pipelines.stopwatch "
        "pipelines.study pipelines.timestamps pipelines.view"
    ),
    "cli.signals": "cli.errors cli.render pipelines.host",
    "engine": "",
    "engine.benchmark": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.cores engine.cpu "
        "engine.cuda engine.cuda.patches engine.cuda.tuning engine.errors engine.generator "
        "engine.model engine.network engine.options engine.probe"
    ),
    "engine.compiler": "engine.cores engine.network engine.options",
    "engine.compiler.kernels": (
        "engine.compiler engine.errors engine.network engine.options engine.patch_grid "
        "engine.scaling"
    ),
    "engine.compiler.program": (
        "engine.compiler engine.compiler.kernels engine.errors engine.network engine.options"
    ),
    "engine.compiler.volume": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.errors "
        "engine.network engine.options engine.whole_volume"
    ),
    "engine.cores": "io.files",
    "engine.cpu": (
        "engine.cores engine.errors engine.network engine.options engine.patch_grid "
        "engine.scaling engine.whole_volume"
    ),
    "engine.cuda": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.cores "
        "engine.errors engine.network engine.options engine.patch_grid engine.probe "
        "engine.scaling engine.whole_volume io.files"
    ),
    "engine.cuda.patches": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.cuda "
        "engine.cuda.tuning engine.errors engine.network engine.options engine.patch_grid "
        "engine.probe engine.scaling"
    ),
    "engine.cuda.tuning": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.cuda "
        "engine.decoding engine.errors engine.network engine.options io.files"
    ),
    "engine.cuda.volume": (
        "engine.compiler engine.compiler.kernels engine.compiler.program engine.compiler.volume "
        "engine.cuda engine.cuda.tuning engine.errors engine.network engine.options "
        "engine.patch_grid engine.scaling engine.whole_volume"
    ),
    "engine.decoding": "",
    "engine.devices": (
        "engine.cpu engine.cuda engine.cuda.patches engine.cuda.volume engine.errors "
        "engine.generator engine.network engine.options engine.probe engine.providers "
        "engine.whole_volume"
    ),
    "engine.errors": "engine.options",
    "engine.generator": (
        "engine.errors engine.network engine.options engine.patch_grid engine.scaling"
    ),
    "engine.importing": "engine.errors engine.importing.operators engine.network io.files",
    "engine.importing.checkpoint": (
        "engine.cpu engine.errors engine.importing engine.model engine.network"
    ),
    "engine.importing.known_networks": (
        "engine.decoding engine.errors engine.importing engine.importing.operators engine.network "
        "io.files"
    ),
    "engine.importing.operators": "engine.errors engine.network",
    "engine.importing.torch_export": (
        "engine.errors engine.importing engine.importing.operators engine.network io.files"
    ),
    "engine.model": (
        "engine.cpu engine.decoding engine.errors engine.network engine.options engine.patch_grid "
        "engine.whole_volume io.files"
    ),
    "engine.network": "engine.decoding engine.errors",
    "engine.options": "",
    "engine.patch_grid": "engine.network",
    "engine.probe": "",
    "engine.providers": "engine.cores engine.cpu engine.errors engine.model engine.network",
    "engine.scaling": "engine.errors engine.network",
    "engine.startup": "engine.cuda.patches engine.model engine.probe",
    "engine.whole_volume": "engine.errors engine.network",
    "io": "",
    "io.channels": "io.dicom io.discovery io.formats io.search io.volume",
    "io.choice": "io.links",
    "io.contrast": "",
    "io.conversion": "io.discovery io.errors io.formats io.reading io.volume",
    "io.dicom": "io.choice io.errors io.files io.volume",
    "io.dicom.derived": (
        "io.contrast io.dicom io.dicom.pixels io.errors io.files io.maps io.volume"
    ),
    "io.dicom.pixels": "io.dicom io.errors io.files io.volume",
    "io.dicom_network": "io.dicom io.files",
    "io.discovery": (
        "io.choice io.contrast io.dicom io.errors io.files io.formats io.links io.search io.volume "
        "io.writing"
    ),
    "io.errors": "",
    "io.exclusion": "io.choice io.discovery io.search io.volume",
    "io.files": "io.errors io.volume",
    "io.found_headers": "io.dicom io.discovery io.errors io.reading io.volume",
    "io.formats": "io.dicom.derived io.dicom.pixels io.errors io.files io.maps io.volume",
    "io.labels": "io.dicom io.files io.formats io.volume",
    "io.links": "io.files",
    "io.maps": "",
    "io.reading": "io.errors io.files io.formats io.volume",
    "io.search": "io.choice io.files io.formats io.links io.maps",
    "io.sidecars": "io.files io.formats",
    "io.volume": "io.maps",
    "io.writing": "io.files io.formats io.maps io.volume",
    "pipelines": "",
    "pipelines.api": (
        "engine.decoding engine.errors engine.generator engine.importing.checkpoint engine.model "
        "engine.network engine.options io.channels io.choice io.conversion io.discovery io.errors "
        "io.files io.reading io.volume pipelines.decisions pipelines.dry_run pipelines.errors "
        "pipelines.evaluation pipelines.events pipelines.mode_cost pipelines.model_import "
        "pipelines.program pipelines.report pipelines.request pipelines.results pipelines.run "
        "pipelines.settings pipelines.shard pipelines.stopwatch pipelines.study "
        "pipelines.translate"
    ),
    "pipelines.bench": (
        "engine.benchmark engine.devices engine.errors engine.model engine.network engine.options "
        "pipelines.decisions pipelines.errors pipelines.host pipelines.run pipelines.study"
    ),
    "pipelines.calibration": (
        "engine.devices engine.generator engine.model engine.options io.errors io.volume "
        "pipelines.cycle pipelines.errors pipelines.report pipelines.results pipelines.run "
        "pipelines.settings pipelines.stopwatch pipelines.study"
    ),
    "pipelines.config": "io.files pipelines.errors",
    "pipelines.cycle": (
        "engine.cores engine.errors engine.generator engine.model engine.network io.volume "
        "pipelines.errors pipelines.settings pipelines.stopwatch pipelines.study"
    ),
    "pipelines.dask_cluster": (
        "engine.errors engine.model pipelines.cycle pipelines.dask_worker pipelines.errors "
        "pipelines.events pipelines.program pipelines.report pipelines.request pipelines.results "
        "pipelines.retries pipelines.run pipelines.shard pipelines.translate"
    ),
    "pipelines.dask_worker": (
        "engine.devices engine.errors engine.model io.discovery io.errors io.files "
        "pipelines.errors pipelines.events pipelines.program pipelines.report pipelines.request "
        "pipelines.results pipelines.run pipelines.settings pipelines.translate"
    ),
    "pipelines.decisions": (
        "engine.devices engine.errors engine.model engine.network engine.options engine.probe "
        "pipelines.cycle pipelines.errors pipelines.host pipelines.settings"
    ),
    "pipelines.doctor": (
        "engine engine.cores engine.cpu engine.cuda engine.devices engine.errors engine.model "
        "engine.network engine.options engine.probe io.files pipelines.errors pipelines.host "
        "pipelines.jobs.queue"
    ),
    "pipelines.dry_run": (
        "engine.cuda.patches engine.errors engine.model engine.options engine.patch_grid io.volume "
        "pipelines.cycle pipelines.decisions pipelines.errors pipelines.mode_cost "
        "pipelines.report pipelines.results pipelines.run pipelines.stopwatch pipelines.study "
        "pipelines.translate"
    ),
    "pipelines.early_start": "engine.model engine.startup pipelines.run",
    "pipelines.errors": "",
    "pipelines.evaluation": (
        "engine.cores engine.decoding io.dicom io.discovery io.errors io.files io.formats "
        "io.reading io.search io.volume pipelines.errors pipelines.host pipelines.hounsfield "
        "pipelines.program pipelines.report pipelines.results pipelines.run pipelines.shard "
        "pipelines.study"
    ),
    "pipelines.events": "pipelines.report pipelines.results pipelines.stopwatch pipelines.study",
    "pipelines.host": "io.files pipelines.errors",
    "pipelines.hounsfield": "",
    "pipelines.jobs": (
        "engine.decoding engine.devices engine.errors engine.model engine.network engine.options "
        "engine.probe engine.startup io.channels io.dicom io.discovery io.errors io.files "
        "io.links io.reading io.search io.volume pipelines.cycle pipelines.decisions "
        "pipelines.errors pipelines.events pipelines.host pipelines.jobs.queue pipelines.program "
        "pipelines.report pipelines.request pipelines.results pipelines.retries pipelines.run "
        "pipelines.settings pipelines.stopwatch pipelines.study pipelines.timestamps"
    ),
    "pipelines.jobs.queue": (
        "engine.decoding engine.model io.files io.links pipelines.errors pipelines.program "
        "pipelines.retries pipelines.settings"
    ),
    "pipelines.mode_cost": (
        "engine.cpu engine.cuda engine.cuda.patches engine.devices engine.model engine.network "
        "engine.options engine.patch_grid engine.whole_volume io.volume pipelines.cycle "
        "pipelines.host pipelines.rates pipelines.run pipelines.study pipelines.translate "
        "pipelines.whole_check"
    ),
    "pipelines.model_import": (
        "engine.cpu engine.decoding engine.errors engine.importing engine.importing.checkpoint "
        "engine.importing.known_networks engine.importing.operators engine.importing.torch_export "
        "engine.model engine.network engine.options engine.patch_grid engine.scaling io.choice "
        "io.discovery io.files io.reading io.volume pipelines.decisions pipelines.errors "
        "pipelines.host pipelines.program pipelines.settings pipelines.stopwatch pipelines.study"
    ),
    "pipelines.name_pattern": "pipelines.errors",
    "pipelines.node": (
        "engine.errors engine.model io.channels io.dicom io.dicom.derived io.dicom_network "
        "io.errors io.files pipelines.cycle pipelines.decisions pipelines.errors pipelines.jobs "
        "pipelines.jobs.queue pipelines.request pipelines.results pipelines.retries"
    ),
    "pipelines.option": "pipelines.errors",
    "pipelines.program": "",
    "pipelines.rates": (
        "engine.decoding io.errors io.files io.volume pipelines.report pipelines.stopwatch"
    ),
    "pipelines.report": (
        "engine.cores engine.decoding engine.errors engine.model engine.probe "
        "io.errors io.files pipelines.errors pipelines.host pipelines.program pipelines.settings "
        "pipelines.stopwatch pipelines.study"
    ),
    "pipelines.request": (
        "engine.model engine.options io.choice io.discovery pipelines.results pipelines.settings "
        "pipelines.shard pipelines.study"
    ),
    "pipelines.results": (
        "engine.decoding engine.model io.channels io.choice io.discovery io.errors io.exclusion "
        "io.files io.formats io.labels io.maps io.sidecars io.volume io.writing pipelines.errors "
        "pipelines.name_pattern pipelines.program pipelines.report pipelines.settings "
        "pipelines.series_description pipelines.shard pipelines.study "
    ),
    "pipelines.retries": "pipelines.errors",
    "pipelines.run": (
        "engine.cores engine.devices engine.errors engine.generator engine.model engine.network "
        "engine.options engine.probe engine.startup engine.whole_volume io.errors io.files "
        "io.formats io.reading io.volume io.writing pipelines.cycle pipelines.errors "
        "pipelines.events pipelines.host pipelines.report pipelines.results pipelines.retries "
        "pipelines.settings pipelines.stopwatch pipelines.study "
        "pipelines.series_description pipelines.whole_check"
    ),
    "pipelines.series_description": "pipelines.errors pipelines.name_pattern",
    "pipelines.settings": (
        "engine.options io.choice io.links pipelines.errors pipelines.name_pattern "
        "pipelines.option pipelines.series_description"
    ),
    "pipelines.shard": "io.discovery pipelines.errors",
    "pipelines.stopwatch": "",
    "pipelines.study": (
        "engine.cores engine.cpu engine.errors engine.generator engine.model engine.network "
        "engine.options engine.patch_grid engine.scaling engine.whole_volume io.channels "
        "io.choice io.contrast io.discovery io.errors io.exclusion io.formats io.labels io.maps "
        "io.reading io.sidecars io.volume io.writing pipelines.errors pipelines.hounsfield "
        "pipelines.program pipelines.settings pipelines.stopwatch"
    ),
    "pipelines.timeline": "io.files pipelines.events pipelines.report pipelines.stopwatch",
    "pipelines.timestamps": "",
    "pipelines.translate": (
        "engine.cuda engine.devices engine.model engine.probe io.discovery io.errors io.files "
        "io.volume io.writing pipelines.cycle pipelines.decisions pipelines.early_start "
        "pipelines.events pipelines.rates pipelines.report pipelines.request pipelines.results "
        "pipelines.run pipelines.settings pipelines.timeline pipelines.timestamps"
    ),
    "pipelines.view": (
        "engine.decoding io.choice io.contrast io.discovery io.errors io.files io.formats "
        "io.labels io.maps io.reading io.volume pipelines.errors pipelines.evaluation "
        "pipelines.hounsfield pipelines.report pipelines.results pipelines.study "
        "pipelines.timestamps"
    ),
    "pipelines.whole_check": (
        "engine.cpu engine.cuda engine.errors engine.model engine.network engine.scaling "
        "pipelines.decisions pipelines.rates pipelines.settings pipelines.study"
    ),
}
"""Units that each unit may import. A new edge is a decision, and the commit that adds it gives the
reason.
"""


def test_a_unit_imports_only_what_the_table_allows(edges: dict[str, set[str]]) -> None:
    allowed = {unit: set(names.split()) for unit, names in MAY_IMPORT.items()}
    new = [
        f"{unit} imports {other}"
        for unit, to in edges.items()
        for other in sorted(to - allowed.get(unit, set()))
    ]
    assert not new, "\n".join(new)


def test_the_table_names_what_there_is_and_allows_no_more(edges: dict[str, set[str]]) -> None:
    assert {unit: set(allowed.split()) for unit, allowed in MAY_IMPORT.items()} == edges


@pytest.mark.parametrize("which", ["edges", "module_edges"])
def test_nothing_imports_each_other_in_a_circle(which: str, request: pytest.FixtureRequest) -> None:
    left: dict[str, set[str]] = dict(request.getfixturevalue(which))
    while free := [unit for unit, to in left.items() if not to & left.keys()]:
        for unit in free:
            del left[unit]
    assert left == {}


def _public_types(module: ast.Module) -> Iterator[str]:
    """Names of the classes and type aliases that a module defines for others."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                if not name.startswith("_"):
                    yield name
            case _:
                pass


def test_a_public_type_name_stands_for_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        for name in _public_types(product()[path]):
            places.setdefault(name, []).append(module)
    twice = [f"{name}: {' '.join(found)}" for name, found in places.items() if len(found) > 1]
    assert not twice, "\n".join(twice)


def test_every_package_holds_modules() -> None:
    held = {name.rpartition(".")[0] for name in modules()}
    assert [package for package in packages() if package not in held] == []


def test_every_package_says_what_lives_there_and_what_it_must_not_know() -> None:
    reported = {name: ast.get_docstring(product()[modules()[name]]) or "" for name in packages()}
    wrong = [
        f"{name}: {text}"
        for name, text in reported.items()
        if "ust " not in text or len(text.splitlines()) > 6
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "from ..engine.devices import Device",
        "from ..engine import devices",
        "import cuda_cyclegan.engine.devices",
        "from cuda_cyclegan.engine.devices import Device",
        "def late():\n    from cuda_cyclegan.engine import devices",
    ],
)
def test_an_import_is_seen(statement: str) -> None:
    assert list(imports_of(ast.parse(statement), "io")) == ["engine.devices"]


def test_every_package_is_installed() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(setup["packages"]) == [
        "cuda_cyclegan",
        *(f"cuda_cyclegan.{package}" for package in packages()),
    ]


def test_the_root_holds_no_other_module() -> None:
    assert sorted(path.name for path in ROOT.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_the_root_package_hands_on_the_public_names_alone() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    reported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert {node.module for node in reported} <= {"pipelines", "pipelines.api"}
