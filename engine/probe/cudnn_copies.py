"""Copies of cuDNN on this machine: all that a program could come upon, and those it has loaded.

cuDNN is one library that loads parts of itself by name when it needs them. The loader looks for a
part in LD_LIBRARY_PATH before the folder that the library lies in, so two copies can get mixed.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

LIBRARY = "libcudnn.so.9"
_MAPS = Path("/proc/self/maps")
_ASK_VERSION = (
    "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]);"
    "library.cudnnGetVersion.restype = ctypes.c_size_t; print(library.cudnnGetVersion())"
)
_LONGEST_SECONDS = 10


@dataclass(frozen=True, slots=True)
class CudnnCopy:
    """A folder with cuDNN in it. found_by: what leads programs there, in words."""

    folder: Path
    found_by: str

    def version(self) -> str:
        """As the copy itself says, asked in a process of its own."""
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
    """cuDNN's own number, such as 91900, as 9.19.0."""
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def packages() -> dict[str, str]:
    """Installed packages of cuDNN and their versions; several share one folder."""
    from importlib.metadata import distributions  # late: to look at the cards takes none of it

    named = {each.metadata["Name"]: each.version for each in distributions()}
    return {name: named[name] for name in sorted(named) if name.startswith("nvidia-cudnn-cu")}


def copies() -> list[CudnnCopy]:
    """Each copy once, whatever leads to it first."""
    found: dict[Path, CudnnCopy] = {}
    for folder, found_by in _places():
        if (folder / LIBRARY).is_file():
            found.setdefault(folder.resolve(), CudnnCopy(folder, found_by))
    return list(found.values())


def loaded() -> list[Path]:
    """Folders whose cuDNN this process has loaded, or a part of it; sorted."""
    return sorted({part.parent for part in loaded_parts()})


def loaded_parts() -> set[Path]:
    """Files of cuDNN that this process has loaded; none where the system does not tell."""
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
    """Where a package lies, without importing it."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return []
    return map(Path, (spec and spec.submodule_search_locations) or [])


def _of_loader() -> Iterator[Path]:
    """Folders that the system's loader knows."""
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if os.access(program, os.X_OK):
            done = subprocess.run([program, "-p"], capture_output=True, text=True, check=False)
            for line in done.stdout.splitlines():
                name, arrow, path = line.partition("=>")
                if arrow and name.split()[0] == LIBRARY:
                    yield Path(path.strip()).parent
            return
