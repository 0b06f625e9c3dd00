"""Whether the installed CUDA packages fit the driver and each other; loads none of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TypeAlias

from .known_faults import RIGHT_SINCE

Numbers: TypeAlias = tuple[int, ...]

_MODULES = {
    "cuda.bindings": "cuda-bindings",
    "cuda.pathfinder": "cuda-pathfinder",
    "cudnn": "nvidia-cudnn-frontend",
}
_MAJORS = (12, 13)


@dataclass(frozen=True, slots=True)
class _Library:
    """Packages by CUDA's major version, and the versions from the oldest to the first too new."""

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
    """One sentence on what does not fit, with the versions found and needed; None if all does.

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
    """The package of the compiler that the installed bindings load, with its version."""
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
    """What to say of an installed package whose version is out of bounds."""
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
    from importlib.metadata import PackageNotFoundError, version  # late: `--help` needs none of it

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> Numbers:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
