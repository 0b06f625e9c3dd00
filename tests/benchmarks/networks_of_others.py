"""Networks of other people's unmodified code: which are imported, and how exactly they compute.

    PYTHONPATH=tests python tests/benchmarks/networks_of_others.py --clones FOLDER [--only TEXT]

networks_of_others.json lists them by repository and commit; none of that code is kept here. FOLDER
has a clone of each repository, bare or not, named OWNER+NAME:

    git clone https://github.com/OWNER/NAME FOLDER/OWNER+NAME

Each network is built small, with random weights, and written as the guides say: as ONNX by both
exporters, as a torch.export archive, and where the program knows its code, as a checkpoint. Each
file is imported, and what the import computes is compared with the network in float64, as is what
PyTorch computes in float32.

A network that is refused has the reason in plain words, `refused`, in that list.

--keep FOLDER keeps the models; --on-card FOLDER measures them on a GPU. --page writes the table of
docs/networks.md from the stored results.
"""

import argparse
import contextlib
import copy
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import types
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from support.export_recipes import followed, recipes, torch_recipe
from support.torch_generators import trained
from torch import nn

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.model_import.importing import ImportRequest, make_model, survey

HERE = Path(__file__).parent
LIST = HERE / "networks_of_others.json"
RESULT = HERE / "results" / "networks_of_others.json"
GPU_RESULT = HERE / "results" / "networks_of_others_gpu.json"
PAGE = HERE.parents[1] / "docs" / "networks.md"

PACKAGES = ("torch", "monai", "onnx", "onnxscript")
PATCH = 32
LIMIT, TIMES_OWN = 5e-6, 1.5
"""Largest relative L2 error, or this many times that of PyTorch in float32."""

SECONDS = 60.0
"""Processor time for one network; then it is ended."""

_SENTENCE = 400

OLDER, NEWER = "ONNX", "ONNX, newer"
"""Exporters: the newer one is tried where the older one does not lead to a model."""

OF_WEIGHTS = "--code"
"""Route whose file holds weights, as a training saves them."""

Row = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    if arguments.on_card:
        with TemporaryDirectory() as cache:
            measure_on_card(arguments.on_card, arguments.output, Path(cache))
    elif arguments.page:
        write_page(json.loads(arguments.output.read_text()))
    else:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Import every listed network, and store what came of it after each."""
    warm_up()
    record: Row = {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: version(name) for name in PACKAGES},
        "networks": [],
    }
    stored = json.loads(arguments.output.read_text())["networks"] if arguments.only else []
    for each, network in listed(arguments.only):
        known = [each["repository"], network["name"]]
        stored = [row for row in stored if [row["repository"], row["name"]] != known]
        row = {key: each.get(key, "") for key in ("repository", "commit")}
        row |= {"name": network["name"]}
        row |= in_a_process(lambda e=each, n=network: measured(e, n, arguments))
        record["networks"].append(row)
        print(f"{row['repository']}: {row['name']}: {summary(row)}", flush=True)
        kept = sorted((*stored, *record["networks"]), key=_order)
        arguments.output.write_text(json.dumps(record | {"networks": kept}, indent=1) + "\n")


def listed(only: str) -> Iterator[tuple[Row, Row]]:
    """Yield every listed network with its repository."""
    for each in json.loads(LIST.read_text()):
        for network in each["networks"]:
            if only in f"{each['repository']}: {network['name']}":
                yield each, network


def _order(row: Row) -> tuple[str, str]:
    return row["repository"].lower(), row["name"]


def warm_up() -> None:
    """Load what exports and imports use, which every fork then has; threads do not survive one."""
    torch.set_num_threads(1)
    importlib.import_module("monai.networks.nets")
    small = nn.Conv3d(1, 1, 3, padding=1).requires_grad_(False)
    patch = noise(1, 8)
    with TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        for recipe in (*recipes()[:2], torch_recipe()):
            _by(recipe, copy.deepcopy(small), Path(name), patch)
    gc.collect()
    gc.freeze()


def in_a_process(work: Callable[[], Row]) -> Row:
    """Return what a forked process makes, in which modules of equal names do not meet."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            made = work()
        except BaseException as error:  # code of others may raise anything
            made = {"broken": _sentence(error)}
        with os.fdopen(writer, "w") as pipe:
            json.dump(made, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"broken": f"not done in {SECONDS:.0f} s"}


def measured(each: Row, network: Row, arguments: argparse.Namespace) -> Row:
    """Return what came of one network: a row of the results."""
    with TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        module = built(each, network, arguments.clones, folder)
        extent, channels = network.get("patch", PATCH), network.get("channels", 1)
        patch = noise(channels, extent)
        exact = computed(module, patch, network, torch.float64)
        row: Row = {
            "parameters": sum(one.numel() for one in module.parameters()),
            "patch": extent,
            "own": relative_error(computed(module, patch, network, torch.float32), exact),
            "routes": {},
        }
        generator = copy.deepcopy(module).eval()
        if network.get("mode") == "train":
            exec(recipes()[2], {"torch": torch, "generator": generator})
        for route, write in routes(network).items():
            place = folder / route
            place.mkdir()
            source = module if route == OF_WEIGHTS else generator
            if route == NEWER and "error" in row["routes"][OLDER]:
                continue
            row["routes"][route] = tried(source, write, place, patch, exact)
        if arguments.keep:
            keep(folder, arguments.keep / label(each["repository"], network["name"]), patch, exact)
    return row


def label(repository: str, network: str) -> str:
    """Return the name of the files of a model that is kept."""
    return re.sub(r"\W+", "_", f"{repository} {network}")


# The network


def built(each: Row, network: Row, clones: Path, folder: Path) -> nn.Module:
    """Build a network of others, with weights that show when one is misplaced."""
    code = folder / "code"
    if each["commit"]:
        check_out(clones / each["repository"].replace("/", "+"), each["commit"], code)
    sys.path.insert(0, str(code / each.get("path", "")))
    sys.meta_path.append(Absent(each.get("absent", [])))
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(f"import functools\n{each['imports']}", names)
    torch.manual_seed(0)
    module = eval(network["build"], names)
    module = trained(module.cpu().float())
    if "output" in network:
        module = Output(module, network["output"])
    return module.requires_grad_(False)


def check_out(clone: Path, commit: str, folder: Path) -> None:
    """Write the Python files of a commit."""
    git = ["git", "-C", str(clone)]
    listing = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", commit], text=True)
    paths = [path for path in listing.splitlines() if path.endswith((".py", ".json", ".txt"))]
    archive = subprocess.check_output([*git, "archive", commit, "--", *paths])
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for packages that a repository imports but that its networks do not use."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in self.names):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _stand_in(name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _stand_in(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": lambda *_, **__: None})


class Output(nn.Module):
    """One output of a network that returns several."""

    def __init__(self, network: nn.Module, which: int) -> None:
        super().__init__()
        self.network, self.which = network, which

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)[self.which]


def noise(channels: int, extent: int) -> np.ndarray:
    shape = (1, channels, extent, extent, extent)
    return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)


def computed(module: nn.Module, patch: np.ndarray, network: Row, kind: torch.dtype) -> np.ndarray:
    """Return what the code of others computes, in the mode in which its test runs."""
    one = copy.deepcopy(module).to(kind).train(network.get("mode") == "train")
    with torch.no_grad():
        made = one(torch.from_numpy(patch).to(kind))
    if not isinstance(made, torch.Tensor):
        raise TypeError(f"the network makes a {type(made).__name__}")
    return made.double().numpy()


# The files

Write = Callable[[nn.Module, Path, np.ndarray], tuple[Path, NetworkChoices]]


def routes(network: Row) -> dict[str, Write]:
    """Return the ways into this program, by name."""
    older, newer, _ = recipes()
    ways: dict[str, Write] = {
        OLDER: lambda g, folder, patch: (_by(older, g, folder, patch), NetworkChoices()),
        NEWER: lambda g, folder, patch: (_by(newer, g, folder, patch), NetworkChoices()),
        ".pt2": lambda g, folder, patch: (
            _by(torch_recipe(), g, folder, patch).with_suffix(".pt2"),
            NetworkChoices(),
        ),
    }
    if "code" in network:
        ways[OF_WEIGHTS] = lambda g, folder, _: _checkpoint(g, folder, network)
    return ways


def _by(recipe: str, generator: nn.Module, folder: Path, patch: np.ndarray) -> Path:
    """Follow a recipe with open extents, or for this patch alone where PyTorch cannot."""
    shape = ", ".join(map(str, patch.shape))
    sized = recipe.replace("torch.zeros(1, 1, 64, 64, 64)", f"torch.zeros({shape})")
    assert sized != recipe or shape == "1, 1, 64, 64, 64"
    try:
        return followed(generator, sized, folder=folder)
    except Exception:  # an exporter says many things
        return followed(generator, _OPEN.sub("", sized), folder=folder)


_OPEN = re.compile(r",?\s*dynamic_(axes=\{.*\}|shapes=\(extents,\))")
"""Argument of a recipe that leaves the extents open, without which a file is for one patch."""


def _checkpoint(generator: nn.Module, folder: Path, network: Row) -> tuple[Path, NetworkChoices]:
    path = folder / "latest_net_G.pth"
    torch.save(generator.state_dict(), path)
    return path, NetworkChoices(code=network["code"], block_padding=network.get("block_padding"))


# The import


def tried(
    generator: nn.Module, write: Write, folder: Path, patch: np.ndarray, exact: np.ndarray
) -> Row:
    """Return what an import of one file says, or how far off its network is."""
    try:
        path, choices = write(copy.deepcopy(generator), folder, patch)
    except Exception as error:  # an exporter says many things
        return {"not exported": _sentence(error)}
    _, channels, *extents = patch.shape
    draft = CardDraft(
        source=tuple(f"in {number}" for number in range(channels)),
        target=tuple(f"out {number}" for number in range(exact.shape[1])),
        intensity_in=Identity(),
        intensity_out=Identity(),
        axes="RAS",
        spacing="native",
        patch=(extents[0], extents[1], extents[2]),
        input_range="open",
        output_range="open",
    )
    try:
        found = survey(ImportRequest(path, choices, draft))
        if found.undecided:
            return {"refused": f"asks for {', '.join(each.field for each in found.undecided)}"}
        made = make_model(found)
    except EngineError as error:
        return {"refused": _sentence(error)}
    (folder / "model.safetensors").write_bytes(made.content)
    with open_cpu_generator(made.model.network, threads=1) as computes:
        output = computes(patch)
    if output.shape != exact.shape:
        return {"wrong": f"shape {list(output.shape)} instead of {list(exact.shape)}"}
    row: Row = {"error": relative_error(output, exact)}
    return row | ({"one patch": True} if found.found.fixed_patch else {})


def keep(folder: Path, kept: Path, patch: np.ndarray, exact: np.ndarray) -> None:
    """Keep one model, and what it is to compute."""
    models = sorted(folder.glob("*/model.safetensors"))
    if models:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(".safetensors").write_bytes(models[0].read_bytes())
        np.savez(kept.with_suffix(".npz"), input=patch, output=exact.astype(np.float32))


def _sentence(error: BaseException) -> str:
    """Return the first line of an error, without paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    if not isinstance(error, EngineError):
        first = f"{type(error).__name__}: {first}"
    return re.sub(r"/\S*/|\x1b\[\d*m", "", first)[:_SENTENCE]


# The results


def is_accepted(row: Row) -> bool:
    return any("error" in route for route in row.get("routes", {}).values())


def is_exact(row: Row) -> bool:
    """Return whether every file that was imported computes what it should."""
    limit = max(LIMIT, TIMES_OWN * row["own"])
    return all(
        "wrong" not in route and route.get("error", 0) <= limit for route in row["routes"].values()
    )


def summary(row: Row) -> str:
    if "broken" in row:
        return f"broken: {row['broken']}"
    own = f"own {row['own']:.1e}"
    parts = [
        f"{name} " + (f"{route['error']:.1e}" if "error" in route else json.dumps(route))
        for name, route in row["routes"].items()
    ]
    return "; ".join([own, *parts, "" if is_exact(row) else "NOT EXACT"])


def measure_on_card(folder: Path, output: Path, cache: Path) -> None:
    """Print and store the errors of kept models on a GPU, in fp32 and fp16.

    cache: folder of compiled kernels.
    """
    from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
    from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
    from cuda_cyclegan.engine.options import SearchSettings

    errors: dict[str, Row] = {}
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "errors": errors,
    }
    for path in sorted(folder.glob("*.safetensors")):
        model = load_model(path)
        with np.load(path.with_suffix(".npz")) as pair:
            patch, expected = pair["input"], pair["output"]
        row: Row = {}
        for precision in ("fp32", "fp16"):
            options = CudaOptions(precision, cache=cache, search=SearchSettings("off"))
            try:
                with open_cuda_generator(model.network, options, patch.shape[2:]) as generator:
                    row[precision] = relative_error(generator(patch), expected)
            except EngineError as error:
                row[precision] = _sentence(error)
        errors[path.stem] = row
        print(path.stem, row, flush=True)
        output.write_text(json.dumps(record, indent=1) + "\n")


def write_page(record: Row) -> None:
    """Write the page with the table of the stored results."""
    rows = [row for row in record["networks"] if "routes" in row]
    imported = [row for row in rows if is_accepted(row)]
    refused = [row for row in rows if not is_accepted(row)]
    exact = sum(map(is_exact, imported))
    reasons = {(each["repository"], network["name"]): network for each, network in listed("")}
    used = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    on_gpu = json.loads(GPU_RESULT.read_text())
    lines = [
        PAGE_START.format(
            networks=len(rows),
            repositories=len({row["repository"] for row in rows}),
            imported=len(imported),
            refused=len(refused),
            exact="all of them" if exact == len(imported) else f"{exact} of them",
            date=record["date"],
            versions=used,
            on_gpu=len(on_gpu["errors"]),
            gpu=on_gpu["gpu"],
            gpu_date=on_gpu["date"],
        ),
        "## Imported\n",
        "| repository, commit | network | imported from | error | PyTorch | GPU fp32 | GPU fp16 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_imported_line(row, on_gpu["errors"]) for row in imported),
        "\n## Rejected\n",
        "| repository, commit | network | reason | message |",
        "| --- | --- | --- | --- |",
        *(_refused_line(row, reasons[row["repository"], row["name"]]) for row in refused),
    ]
    PAGE.write_text("\n".join(lines) + "\n")


PAGE_START = """\
# Networks that were tried

Look here for a network like yours before you export it. The tables list {networks} networks from
{repositories} repositories of other people. Their code is unmodified, and they were built small,
with random weights. {imported} are imported in at least one way, {refused} are rejected with a
reason, and none is computed wrongly.

- *Imported from:* "ONNX" is [ONNX](onnx.md) by PyTorch's older exporter, and "newer" is ONNX by
  its newer one (tried where the older one failed). ".pt2" is [torch.export](torch-export.md), and
  "--code" is a [checkpoint with --code](import.md#with-the-name-of-the-training-code). A star
  means that only patches of the exported size are accepted.
- *Error:* relative L2 distance to the network in float64, the largest of the ways of import.
  *PyTorch:* the same distance for PyTorch in float32. An error of at most 5e-6, or of 1.5 times
  PyTorch's own, is allowed: {exact} meet it.
- *GPU fp32, fp16:* the same distance on a GPU ({gpu}, {gpu_date}, {on_gpu} networks).
- *Reason:* the values of a network that sees the whole patch differ from patch to patch. A
  network that makes other extents does not give one value per voxel of a scan.

Measured by `tests/benchmarks/networks_of_others.py` on {date} with {versions}.
"""


def _place(row: Row) -> str:
    name, commit = row["repository"], row["commit"]
    return f"[{name}](https://github.com/{name}) {commit[:7]}".strip()


def _imported_line(row: Row, on_gpu: Row) -> str:
    ways = {name: route for name, route in row["routes"].items() if "error" in route}
    shown = ", ".join(name + ("*" if "one patch" in route else "") for name, route in ways.items())
    error = max(route["error"] for route in ways.values())
    errors = [error, row["own"], *on_gpu.get(label(row["repository"], row["name"]), {}).values()]
    shown = " | ".join((shown, *(f"{each:.1e}" for each in errors), *["-"] * (4 - len(errors))))
    return f"| {_place(row)} | {row['name']} | {shown} |"


def _refused_line(row: Row, network: Row) -> str:
    routes = row["routes"].values()
    refused = [route["refused"].partition(": ")[2] for route in routes if "refused" in route]
    failed = [
        route["not exported"].partition("  [")[0] for route in routes if "refused" not in route
    ]
    text = refused[0] if refused else f"PyTorch cannot export it ({failed[0]})"
    reason = network.get("refused", "")
    return f"| {_place(row)} | {row['name']} | {reason} | {text.replace('|', ' ')} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clones", type=Path, help="folder of the clones")
    parser.add_argument("--only", default="", help="part of 'REPOSITORY: NETWORK'")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for models and what they compute")
    parser.add_argument("--on-card", type=Path, help="measure models that were kept, on a GPU")
    parser.add_argument("--page", action="store_true", help="write docs/networks.md")
    arguments = parser.parse_args()
    arguments.output = arguments.output or (GPU_RESULT if arguments.on_card else RESULT)
    return arguments


if __name__ == "__main__":
    main()
