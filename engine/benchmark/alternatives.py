"""Alternatives that a benchmark compares with: the modes in which PyTorch can run a network, and
another cuDNN library. Imports no torch.
"""

import ctypes
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import DeviceUnavailableError
from ..options import Precision
from ..probe.cuda_packages import LIBRARY, loaded_parts


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run a network in PyTorch.

    name: as shown. arithmetic: precision of the convolutions. channels_last: memory order NDHWC.
    autotune: cudnn.benchmark. graph: captured once into a CUDA graph. compile_mode: of
    torch.compile; None runs eagerly.
    """

    name: str
    arithmetic: Precision
    channels_last: bool = False
    autotune: bool = True
    graph: bool = False
    compile_mode: str | None = None

    @property
    def runs_graph(self) -> bool:
        """Whether a CUDA graph runs; PyTorch does not count tensors in a graph's own pool."""
        return self.graph or self.compile_mode == "max-autotune"


EAGER_DEFAULT = Mode("eager default", "tf32", autotune=False)
EAGER_HALF = Mode("eager half", "fp16")
MODES = (
    EAGER_DEFAULT,
    EAGER_HALF,
    Mode("eager half channels_last_3d", "fp16", channels_last=True),
    Mode("eager half channels_last_3d graph", "fp16", channels_last=True, graph=True),
    Mode("compile half channels_last_3d", "fp16", True, compile_mode="default"),
    Mode("compile max-autotune half channels_last_3d", "fp16", True, compile_mode="max-autotune"),
    Mode("eager tf32 channels_last_3d", "tf32", channels_last=True),
    Mode("compile tf32", "tf32", compile_mode="default"),
    Mode("compile tf32 channels_last_3d", "tf32", True, compile_mode="default"),
    Mode("eager fp32", "fp32"),
    Mode("compile fp32", "fp32", compile_mode="default"),
    Mode("compile fp32 channels_last_3d", "fp32", True, compile_mode="default"),
)


def modes(kind: str, precision: Precision) -> tuple[Mode, ...]:
    """Return the modes to compare with on a "cuda" or "cpu" device, the default first."""
    if kind == "cpu":
        return tuple(m for m in MODES if m.arithmetic == "fp32" and not m.channels_last)
    same = "fp16" if precision == "bf16" else precision
    chosen = [m for m in MODES if m.arithmetic == same and m != EAGER_DEFAULT]
    if precision == "bf16":
        renamed = {m: m.name.replace("half", "bfloat16") for m in chosen}
        chosen = [replace(m, arithmetic="bf16", name=name) for m, name in renamed.items()]
    return (EAGER_DEFAULT, *chosen)


_PARTS = "libcudnn_"


def cudnn_library(folder: Path) -> Path:
    """Return the cuDNN library of a folder. Raises DeviceUnavailableError."""
    found = folder / LIBRARY
    if not found.is_file():
        raise DeviceUnavailableError(f"{folder} contains no {LIBRARY}; give a folder with cuDNN 9.")
    return found.resolve()


def use_cudnn(folder: Path) -> None:
    """Make the frontend call the folder's library instead of the installed one.

    To be called before cuDNN is first loaded. The library finds its parts by LD_LIBRARY_PATH, which
    must name the folder since the process started. Raises DeviceUnavailableError.
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
    """Raise DeviceUnavailableError if this process has loaded parts of another cuDNN."""
    home = cudnn_library(folder).parent
    for path in sorted(part.resolve() for part in loaded_parts()):
        if path.name.startswith(_PARTS) and path.parent != home:
            raise DeviceUnavailableError(
                f"{path} was loaded instead of {home}; the two cannot be compared here."
            )
