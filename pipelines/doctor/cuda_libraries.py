"""Checks whether cuDNN and NVRTC, which the engine uses, are the intended and compatible ones."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .findings import Finding, failure, ok, warning

if TYPE_CHECKING:
    from ...engine.probe.cuda_packages import CudnnCopy

_REINSTALL = 'install it again: pip install --force-reinstall "cuda-cyclegan[cuda12]" (or cuda13)'


def examine_cuda_libraries(capabilities: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Examine cuDNN and NVRTC; capabilities: compute capabilities of the GPUs to use."""
    yield from _cudnn()
    yield _nvrtc(capabilities)
    with suppress(Exception):  # a broken library, as reported above
        yield _combination()


def _cudnn() -> Iterator[Finding]:
    from ...engine.probe.cuda_packages import REMEDY, copies, dotted, known_fault, loaded, packages

    try:
        cudnn: Any = import_module("cudnn")  # its types are generated and incomplete
    except Exception as error:  # a broken library may raise anything
        words = f"cannot be loaded ({type(error).__name__}: {error})"
        yield failure("cuDNN", words, _REINSTALL)
        return
    number = cudnn.backend_version()  # asked first, as that loads the first parts
    version = dotted(number)
    if fault := known_fault(number):
        yield failure("cuDNN", fault, REMEDY)
    yield from judged_copies(copies(), loaded(), version)
    yield from judged_packages(packages())


def examine_parts() -> Iterator[Finding]:
    """Check, once the engine has run, that all parts of cuDNN come from one copy."""
    from ...engine.probe.cuda_packages import loaded

    folders = loaded()
    if len(folders) > 1:
        yield _mixed(folders)


def judged_copies(
    found: "Sequence[CudnnCopy]", loaded: Sequence[Path], version: str
) -> Iterator[Finding]:
    """Report which copy was loaded and why, and whether another one conflicts with it.

    loaded: folders from which this process loaded cuDNN or a part of it. version: loaded version.
    """
    if len(loaded) > 1:
        yield _mixed(loaded)
        return
    taken = {copy.folder.resolve(): copy for copy in found}.get(
        loaded[0].resolve() if loaded else Path()
    )
    place = str(loaded[0]) if loaded else "its location is unknown"
    why = f", by {taken.found_by}" if taken else ""
    others = [(copy, copy.version()) for copy in found if copy is not taken] if loaded else []
    words = f"{version}, {place}{why}"
    if others:
        unused = [f"{its} in {copy.folder} ({copy.found_by})" for copy, its in others]
        words = f"{words}; not used: {', '.join(unused)}"
    rivals = [copy for copy, its in others if copy.found_by == "LD_LIBRARY_PATH" and its != version]
    if rivals:
        yield warning(
            "cuDNN",
            f"{words}; LD_LIBRARY_PATH goes first when parts of cuDNN are loaded, so they can mix",
            f"remove {rivals[0].folder} from LD_LIBRARY_PATH",
        )
    elif taken and taken.found_by == "LD_LIBRARY_PATH" and len(found) > 1:
        yield warning(
            "cuDNN",
            f"{words}; LD_LIBRARY_PATH goes before the installed package",
            f"remove {taken.folder} from LD_LIBRARY_PATH, unless this copy is intended",
        )
    else:
        yield ok("cuDNN", words)


def judged_packages(installed: dict[str, str]) -> Iterator[Finding]:
    """Warn if packages for CUDA 12 and 13 are both installed, as their files share names."""
    if len(installed) > 1:
        packages = " and ".join(f"{name} {version}" for name, version in installed.items())
        yield warning(
            "cuDNN packages",
            f"{packages} are both installed and overwrite each other's files",
            f"pip uninstall {' '.join(installed)}, then {_REINSTALL}",
        )


def _mixed(folders: Sequence[Path]) -> Finding:
    return failure(
        "cuDNN",
        f"its parts are loaded from several copies: {', '.join(map(str, folders))}",
        "keep one: remove the others from LD_LIBRARY_PATH, or uninstall them",
    )


def _nvrtc(capabilities: Sequence[tuple[int, int]]) -> Finding:
    try:
        from ...engine.cuda.nvrtc import headers, newest_chip, toolkit
    except Exception as error:  # a broken library may raise anything
        words = f"cannot be loaded ({type(error).__name__}: {error})"
        return failure("NVRTC", words, _REINSTALL)
    try:
        words = f"{toolkit()}, {headers()}"
        newest = newest_chip()
    except Exception as error:  # as above, when its library is looked for
        return failure("NVRTC", f"does not work ({error})", _REINSTALL)
    too_new = [one for one in capabilities if one > newest]
    if too_new:
        return warning(
            "NVRTC",
            f"{words}; it is older than compute capability {_dotted(too_new[0])}, so kernels are "
            f"compiled for {_dotted(newest)} and finished by the driver",
            "update it: pip install --upgrade nvidia-cuda-nvrtc-cu12 (or nvidia-cuda-nvrtc)",
        )
    return ok("NVRTC", words)


def _combination() -> Finding:
    """Report whether the versions of the libraries were tested together on a GPU."""
    from ...engine.cuda.nvrtc import toolkit
    from ...engine.probe.cuda_packages import dotted, untested

    cudnn: Any = import_module("cudnn")
    versions = dotted(cudnn.backend_version()), toolkit(), str(cudnn.__version__)
    words = "cuDNN {}, NVRTC {}, cuDNN's frontend {}".format(*versions)
    return ok("CUDA versions", f"{words}: {untested(*versions) or 'tested together on a GPU'}")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
