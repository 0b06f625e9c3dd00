"""Networks of other people's unmodified code: which are imported, and how exactly they compute.

    PYTHONPATH=tests python tests/benchmarks/networks_of_others.py --clones FOLDER [--only TEXT]

networks_of_others.json lists them by repository and commit; none of that code is kept here. FOLDER
has a clone of each repository, bare or not, named OWNER+NAME:

    git clone https://github.com/OWNER/NAME FOLDER/OWNER+NAME

--pack FILE.tar.xz archives what is used of the clones, for a machine without them: FOLDER is then
where the archive was unpacked.

Each network is built small, with random weights, and written as the guides say: as ONNX by both
exporters, as a torch.export archive, and where the program knows its code, as a checkpoint. Each
file is imported, and what the import computes is compared with the network in float64, as is what
PyTorch computes in float32.

A network that is refused has the reason in plain words, `refused`, in that list.

--keep FOLDER keeps the models; --on-card FOLDER measures them on a GPU. networks_page.py writes the
tables of docs/networks.md from the stored results.
"""

import argparse
import contextlib
import copy
import gc
import importlib
import io
import json
import os
import re
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from benchmarks.code_of_others import (
    PATCH,
    Row,
    built,
    computed,
    label,
    listed,
    noise,
    pack,
    prepared,
    sentence,
)
from support.export_recipes import followed, recipes, torch_recipe
from torch import nn

from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.errors import EngineError
from cuda_cyclegan.engine.importing.checkpoint.evidence import NetworkChoices
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_file import load_model
from cuda_cyclegan.engine.model.reference import relative_error
from cuda_cyclegan.pipelines.model_import.card_draft import CardDraft
from cuda_cyclegan.pipelines.model_import.importing import (
    ImportRequest,
    Survey,
    make_model,
    survey,
)

HERE = Path(__file__).parent
RESULT = HERE / "results" / "networks_of_others.json"
GPU_RESULT = HERE / "results" / "networks_of_others_gpu.json"

PACKAGES = ("torch", "monai", "onnx", "onnxscript")
LIMIT, TIMES_OWN = 5e-6, 1.5
"""Largest relative L2 error, or this many times that of PyTorch in float32."""

ANOTHER = 1e-2
"""Error from which a file is suspected to hold another network than the one that was exported."""

SECONDS = 60.0
"""Processor time for one network; then it is ended."""

OLDER, NEWER = "ONNX", "ONNX, newer"
"""Exporters: the newer one is tried where the older one does not lead to a model."""

OF_WEIGHTS = "--code"
"""Route whose file holds weights, as a training saves them."""


def main() -> None:
    arguments = _arguments()
    if arguments.pack:
        pack(arguments.clones, arguments.pack)
    elif arguments.on_card:
        with TemporaryDirectory() as cache:
            measure_on_card(arguments.on_card, arguments.output, Path(cache))
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
            made = {"broken": sentence(error)}
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
        generator = prepared(module, network)
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
        return {"not exported": sentence(error)}
    try:
        found = surveyed(path, choices, patch, exact.shape[1])
        if found.undecided:
            return {"refused": f"asks for {', '.join(each.field for each in found.undecided)}"}
        made = make_model(found)
    except EngineError as error:
        return {"refused": sentence(error)}
    (folder / "model.safetensors").write_bytes(made.content)
    with open_cpu_generator(made.model.network, threads=1) as computes:
        output = computes(patch)
    if output.shape != exact.shape:
        return {"wrong": f"shape {list(output.shape)} instead of {list(exact.shape)}"}
    row: Row = {"error": relative_error(output, exact)}
    if row["error"] > ANOTHER and path.suffix == ".onnx":
        written = relative_error(by_onnx_runtime(path, patch), exact)
        if written > ANOTHER:
            return {"not exported": f"another network is written, off by {written:.1e}"}
    return row | ({"one patch": True} if found.found.fixed_patch else {})


def surveyed(path: Path, choices: NetworkChoices, patch: np.ndarray, channels: int) -> Survey:
    """Return what an import finds in a file; channels: of the output. Raises EngineError."""
    _, sources, *extents = patch.shape
    draft = CardDraft(
        source=tuple(f"in {number}" for number in range(sources)),
        target=tuple(f"out {number}" for number in range(channels)),
        intensity_in=Identity(),
        intensity_out=Identity(),
        axes="RAS",
        spacing="native",
        patch=(extents[0], extents[1], extents[2]),
        input_range="open",
        output_range="open",
    )
    return survey(ImportRequest(path, choices, draft))


def by_onnx_runtime(path: Path, patch: np.ndarray) -> np.ndarray:
    """Return what a file computes in ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    [source] = session.get_inputs()
    return np.asarray(session.run(None, {source.name: patch})[0])


def keep(folder: Path, kept: Path, patch: np.ndarray, exact: np.ndarray) -> None:
    """Keep one model, and what it is to compute."""
    models = sorted(folder.glob("*/model.safetensors"))
    if models:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(".safetensors").write_bytes(models[0].read_bytes())
        np.savez(kept.with_suffix(".npz"), input=patch, output=exact.astype(np.float32))


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
                row[precision] = sentence(error)
        errors[path.stem] = row
        print(path.stem, row, flush=True)
        output.write_text(json.dumps(record, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clones", type=Path, help="folder of the clones")
    parser.add_argument("--only", default="", help="part of 'REPOSITORY: NETWORK'")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for models and what they compute")
    parser.add_argument("--on-card", type=Path, help="measure models that were kept, on a GPU")
    parser.add_argument("--pack", type=Path, help="archive what is used of the clones")
    arguments = parser.parse_args()
    arguments.output = arguments.output or (GPU_RESULT if arguments.on_card else RESULT)
    return arguments


if __name__ == "__main__":
    main()
