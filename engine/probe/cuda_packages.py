"""Installed CUDA packages and copies of cuDNN, whether they fit the driver and each other, and the
versions of cuDNN that are known to compute wrongly. Loads none of them.

cuDNN is one library that loads parts of itself by name when it needs them. The loader searches
LD_LIBRARY_PATH before the folder of the library, so two copies can get mixed. The engine also
checks each cuDNN plan on the GPU before use, but a kernel that is wrong under unpublished
conditions may pass that check; hence the list of known faults.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

LIBRARY = "libcudnn.so.9"
_MAPS = Path("/proc/self/maps")
_ASK_VERSION = (
    "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]);"
    "library.cudnnGetVersion.restype = ctypes.c_size_t; print(library.cudnnGetVersion())"
)
_LONGEST_SECONDS = 10


@dataclass(frozen=True, slots=True)
class CudnnCopy:
    """A folder that holds cuDNN. found_by: how programs find it, in words."""

    folder: Path
    found_by: str

    def version(self) -> str:
        """Return the version that the library reports, queried in a separate process."""
        command = [sys.executable, "-I", "-S", "-c", _ASK_VERSION, str(self.folder / LIBRARY)]
        try:
            done = subprocess.run(
                command,
                env={**os.environ, "LD_LIBRARY_PATH": str(self.folder)},
                capture_output=True,
                text=True,
                check=True,
                timeout=_LONGEST_SECONDS,
            )
        except (OSError, subprocess.SubprocessError):
            return "of unknown version"
        return dotted(int(done.stdout))


def dotted(number: int) -> str:
    """Format cuDNN's version number: 91900 is 9.19.0."""
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def packages() -> dict[str, str]:
    """Return the installed packages of cuDNN and their versions; several may share a folder."""
    from importlib.metadata import distributions  # late: not needed to probe GPUs

    named = {each.metadata["Name"]: each.version for each in distributions()}
    return {name: named[name] for name in sorted(named) if name.startswith("nvidia-cudnn-cu")}


def copies() -> list[CudnnCopy]:
    """Return each copy of cuDNN once, with the first way in which programs find it."""
    found: dict[Path, CudnnCopy] = {}
    for folder, found_by in _places():
        if (folder / LIBRARY).is_file():
            found.setdefault(folder.resolve(), CudnnCopy(folder, found_by))
    return list(found.values())


def loaded() -> list[Path]:
    """Return the folders from which this process has loaded parts of cuDNN, sorted."""
    return sorted({part.parent for part in loaded_parts()})


def loaded_parts() -> set[Path]:
    """Return the cuDNN files that this process has loaded; none if the system lists none."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return set()
    names = {line.split(maxsplit=5)[-1] for line in lines if "/libcudnn" in line}
    return {Path(name) for name in names}


def _places() -> Iterator[tuple[Path, str]]:
    named = " and ".join(packages()) or "the package nvidia-cudnn"
    for root in _folders("nvidia.cudnn"):
        yield root / "lib", named
    for text in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if text:
            yield Path(text), "LD_LIBRARY_PATH"
    for root in _folders("torch"):
        yield root / "lib", "PyTorch's bundle"
    for folder in _of_loader():
        yield folder, "the system's loader"


def _folders(package: str) -> Iterable[Path]:
    """Locate a package without importing it."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return []
    return map(Path, (spec and spec.submodule_search_locations) or [])


def _of_loader() -> Iterator[Path]:
    """Yield the folders of cuDNN in the loader's cache."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(program, os.X_OK):
            done = subprocess.run([program, "-p"], capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                name, arrow, path = line.partition("=>")
                if arrow and name.split()[0] == LIBRARY:
                    yield Path(path.strip()).parent
            return


RIGHT_SINCE = (9, 16)
"""First version without these known faults. The extras require it and exclude later faulty ones."""

REMEDY = "install a newer one: pip install --upgrade 'cuda-cyclegan[cuda12]' (or cuda13)"


@dataclass(frozen=True, slots=True)
class KnownFault:
    """A fault of a range of cuDNN versions.

    first, fixed: version numbers of the first version with it and of the first without. what: the
    effect, with the version as subject. source: where it is reported.
    """

    first: int
    fixed: int
    what: str
    source: str


KNOWN_FAULTS = (
    KnownFault(
        90800,
        91500,
        "gives wrong results in 3D convolutions of fp16 and bf16",
        "PyTorch's issue 163539, where 9.8 and 9.10.2 did so with a tensor of 124x1282x722 voxels "
        "and 16 channels, and its pull requests 163581 and 166480, which keep 9.8 to 9.14 from it",
    ),
    KnownFault(
        91002,
        91600,
        "has a kernel for 3D convolutions of tf32 that is wrong",
        "PyTorch's pull request 167024, where cuDNN's team names 9.10.2 to 9.15 and no constraints",
    ),
    KnownFault(
        92301,
        92400,
        "has a kernel for convolutions whose results differ from run to run",
        "PyTorch's issue 188288 and its pull requests 188318, 189207 and 189483: seen with 2D "
        "networks on GPUs of capability 8.6, and fixed in 9.24",
    ),
)


def known_fault(number: int) -> str | None:
    """Return the known faults of a version, such as 91002, in words; None without any."""
    known = [fault for fault in KNOWN_FAULTS if fault.first <= number < fault.fixed]
    if not known:
        return None
    reasons = " and ".join(f"{fault.what} ({fault.source})" for fault in known)
    return f"version {dotted(number)} {reasons}"


TESTED_TOGETHER = (
    ("9.19", "13.0", "1.20"),
    ("9.19", "13.0", "1.26"),
    ("9.28", "13.5", "1.26"),
)
"""Versions of cuDNN, NVRTC and cuDNN's frontend with which the tests passed on a GPU, as
docs/supported-gpus.md states. The lock file for CUDA 13 takes the last of them.
"""


def untested(*versions: str) -> str | None:
    """Return a sentence on versions of cuDNN, NVRTC and the frontend that were not tested on a GPU
    together; None if they were. A part of a version after the second does not matter.
    """
    if tuple(".".join(version.split(".")[:2]) for version in versions) in TESTED_TOGETHER:
        return None
    cudnn, nvrtc, frontend = TESTED_TOGETHER[-1]
    return (
        f"not tested together on a GPU (others were, such as cuDNN {cudnn}, NVRTC {nvrtc} and "
        f"cuDNN's frontend {frontend}); each plan and Tensor Core kernel is checked on this GPU "
        "before use"
    )


Numbers: TypeAlias = tuple[int, ...]

_MODULES = {
    "cuda.bindings": "cuda-bindings",
    "cuda.pathfinder": "cuda-pathfinder",
    "cudnn": "nvidia-cudnn-frontend",
}
_MAJORS = (12, 13)


@dataclass(frozen=True, slots=True)
class _Library:
    """Packages by CUDA's major version, with the oldest version and the first one too new."""

    name: str
    packages: Mapping[int, str]
    versions: Mapping[int, tuple[Numbers, Numbers]]


_OF_CUDA = {12: ((12, 6), (13,)), 13: ((13,), (14,))}
_NVRTC = _Library("NVRTC", {12: "nvidia-cuda-nvrtc-cu12", 13: "nvidia-cuda-nvrtc"}, _OF_CUDA)
_LIBRARIES = (
    _Library(
        "cuDNN",
        {12: "nvidia-cudnn-cu12", 13: "nvidia-cudnn-cu13"},
        {12: (RIGHT_SINCE, (10,)), 13: (RIGHT_SINCE, (10,))},
    ),
    _NVRTC,
    _Library(
        "the CUDA runtime's headers",
        {12: "nvidia-cuda-runtime-cu12", 13: "nvidia-cuda-runtime"},
        _OF_CUDA,
    ),
)
_BINDINGS = {12: ((12, 8), (13,)), 13: ((13,), (14,))}
_OF_BOTH = {"cuda-pathfinder": ((1, 3), (2,)), "nvidia-cudnn-frontend": ((1, 20), (1, 27))}


def why_not_these_packages(newest: int) -> str | None:
    """Return one sentence on what does not fit, with the versions found and needed, or None.

    newest: the CUDA version that the driver supports, as 1000 major + 10 minor.
    """
    fitting = _extra(min(max(newest // 1000, _MAJORS[0]), _MAJORS[-1]))
    for module, package in _MODULES.items():
        if not _is_importable(module):
            return f"the package {package} is not installed: install {fitting}"
    for package, bounds in _OF_BOTH.items():
        if sentence := _misfit(package, bounds, fitting):
            return sentence
    bindings = _version("cuda-bindings") or "12"
    major = _numbers(bindings)[0]
    if major not in _MAJORS:
        return f"cuda-bindings {bindings} is installed, but 12 or 13 is needed: install {fitting}"
    if newest // 1000 < major:
        return _old_driver(newest, f"cuda-bindings {bindings} needs CUDA {major}")
    if sentence := _misfit("cuda-bindings", _BINDINGS[major], _extra(major)):
        return sentence
    missing = (_missing(library, major, f"cuda-bindings {bindings}") for library in _LIBRARIES)
    return next((sentence for sentence in missing if sentence), None)


@cache
def nvrtc_package() -> str:
    """Return the package of the compiler that the installed bindings load, with its version."""
    major = _numbers(_version("cuda-bindings") or "12")[0]
    package = _NVRTC.packages[min(max(major, _MAJORS[0]), _MAJORS[-1])]
    return f"{package} {_version(package)}"


def _old_driver(newest: int, need: str) -> str:
    supported = f"the NVIDIA driver supports CUDA {newest // 1000}.{newest % 1000 // 10}"
    other = f" or install {_extra(newest // 1000)}" if newest // 1000 in _MAJORS else ""
    return f"{supported}, but {need}: update the driver{other}"


def _missing(library: _Library, major: int, wanting: str) -> str | None:
    package, bounds = library.packages[major], library.versions[major]
    if _version(package):
        return _misfit(package, bounds, _extra(major))
    there = [f"{p} {v}" for m, p in library.packages.items() if m != major and (v := _version(p))]
    instead = f", only {there[0]}" if there else ""
    return (
        f"{library.name} for CUDA {major}, which {wanting} needs, is not installed ({package} "
        f"{_dotted(bounds[0])} or newer{instead}): install {_extra(major)}"
    )


def _misfit(package: str, bounds: tuple[Numbers, Numbers], extra: str) -> str | None:
    """Return a sentence on an installed package whose version is out of bounds, or None."""
    found, (oldest, too_new) = _version(package), bounds
    if found is None or oldest <= _numbers(found) < too_new:
        return None
    return (
        f"{package} {found} is installed, but at least {_dotted(oldest)} and less than "
        f"{_dotted(too_new)} is needed: install {extra}"
    )


def _extra(major: int) -> str:
    return f'"cuda-cyclegan[cuda{major}]"'


def _dotted(numbers: Numbers) -> str:
    return ".".join(map(str, numbers))


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # late: `--help` does not need it

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> Numbers:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
