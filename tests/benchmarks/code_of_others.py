"""Code of other people's repositories: the networks that networks_of_others.json lists, built.

Each repository has a commit. None of its code is kept here: a folder has a clone of each, bare or
not, named OWNER+NAME, or the files of the commits, as `pack` archives them.
"""

import copy
import importlib.abc
import importlib.machinery
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from support.export_recipes import recipes
from support.torch_generators import trained
from torch import nn

from cuda_cyclegan.engine.errors import EngineError

LIST = Path(__file__).parent / "networks_of_others.json"
PATCH = 32

_SENTENCE = 400
_LARGEST = 300_000
"""Bytes of a file that is packed; larger ones are data."""

Row = dict[str, Any]


def listed(only: str) -> Iterator[tuple[Row, Row]]:
    """Yield every listed network with its repository."""
    for each in json.loads(LIST.read_text()):
        for network in each["networks"]:
            if only in f"{each['repository']}: {network['name']}":
                yield each, network


def label(repository: str, network: str) -> str:
    """Return the name of the files of a model that is kept."""
    return re.sub(r"\W+", "_", f"{repository} {network}")


def built(each: Row, network: Row, clones: Path, folder: Path, size: str = "build") -> nn.Module:
    """Build a network of others, with weights that show when one is misplaced.

    size: "build" for the small one, or "usual" for that of the author's own settings.
    """
    code = folder / "code"
    if each["commit"]:
        check_out(clones / _folder_of(each), each["commit"], code)
    root = code / each.get("path", "")
    sys.path.insert(0, str(root))
    sys.meta_path.append(Absent(each.get("absent", [])))
    for name in each.get("bare", []):
        sys.modules[name] = _bare(name, root)
    names: dict[str, Any] = {"nn": nn, "torch": torch}
    exec(f"import functools\n{each['imports']}", names)
    torch.manual_seed(0)
    module = eval(network.get(size, network["build"]), names)
    module = trained(module.cpu().float())
    if "output" in network:
        module = Output(module, network["output"])
    return module.requires_grad_(False)


def prepared(module: nn.Module, network: Row) -> nn.Module:
    """Return the generator that the guides have exported, in eval mode."""
    generator = copy.deepcopy(module).eval()
    if network.get("mode") == "train":
        exec(recipes()[2], {"torch": torch, "generator": generator})
    return generator


def check_out(clone: Path, commit: str, folder: Path) -> None:
    """Write the text files of a commit, of a clone or of what `pack` wrote."""
    if (clone / commit).is_dir():
        shutil.copytree(clone / commit, folder)
        return
    git = ["git", "-C", str(clone)]
    listing = subprocess.check_output([*git, "ls-tree", "-r", "--name-only", commit], text=True)
    paths = [path for path in listing.splitlines() if path.endswith((".py", ".json", ".txt"))]
    archive = subprocess.check_output([*git, "archive", commit, "--", *paths])
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def pack(clones: Path, archive: Path) -> None:
    """Write an archive of all listed commits, for a machine that has no clones."""
    with TemporaryDirectory() as name, tarfile.open(archive, "w:xz") as files:
        for each in json.loads(LIST.read_text()):
            clone = clones / _folder_of(each)
            if each["commit"] and clone.is_dir():
                folder = Path(name) / clone.name / each["commit"]
                check_out(clone, each["commit"], folder)
                files.add(folder, folder.relative_to(name), filter=_small)


def _small(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if entry.size <= _LARGEST else None


def _folder_of(each: Row) -> str:
    return each["repository"].replace("/", "+")


def _bare(name: str, root: Path) -> types.ModuleType:
    """Return a package whose own code is not run, as it imports far more than its networks."""
    package = types.ModuleType(name)
    package.__path__ = [str(root / name.replace(".", "/"))]
    return package


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


def sentence(error: BaseException) -> str:
    """Return the first line of an error, without paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    if not isinstance(error, EngineError):
        first = f"{type(error).__name__}: {first}"
    return re.sub(r"/\S*/|\x1b\[\d*m", "", first)[:_SENTENCE]
