"""Which cuDNN library the CUDA engine of this process uses; asked before it is first loaded."""

import ctypes
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DeviceUnavailableError
from ..probe.cuda_packages import LIBRARY, loaded_parts

_PARTS = "libcudnn_"


def cudnn_library(folder: Path) -> Path:
    """The library of a folder. Raises DeviceUnavailableError."""
    found = folder / LIBRARY
    if not found.is_file():
        raise DeviceUnavailableError(f"{folder} holds no {LIBRARY}; name a folder of cuDNN 9.")
    return found.resolve()


def use_cudnn(folder: Path) -> None:
    """Have the frontend call the folder's library in place of the installed one.

    It finds its parts by LD_LIBRARY_PATH, which must name the folder since the process began.
    Raises DeviceUnavailableError.
    """
    path = cudnn_library(folder)
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        frontend: Any = import_module("cudnn")
        handle = library._handle  # pyright: ignore[reportPrivateUsage]
        frontend._pybind_module._set_dlhandle_cudnn(handle)
    except (OSError, ImportError, AttributeError) as error:
        raise DeviceUnavailableError(f"{path} cannot be loaded ({error}).") from error


def check_cudnn(folder: Path) -> None:
    """Raise DeviceUnavailableError if parts of another cuDNN are at work in this process."""
    home = cudnn_library(folder).parent
    for path in sorted(part.resolve() for part in loaded_parts()):
        if path.name.startswith(_PARTS) and path.parent != home:
            raise DeviceUnavailableError(
                f"{path} was loaded where {home} was asked for; the two cannot be compared here."
            )
