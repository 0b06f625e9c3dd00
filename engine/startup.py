"""Work that starts while the program still loads its libraries: the GPU's context and the model
file; what is not loaded; and names of GPUs that are needed before the driver starts.
"""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from .probe.gpus import VARIABLE, early_context, usable_gpus, visible_gpu_count, visible_name


def several_gpus(requested: str) -> tuple[str, ...]:
    """Return the name of the GPU of each process behind a device name if these are several.

    Starts no driver; whether the GPUs are usable is not known yet.
    """
    kind, _, numbers = requested.partition(":")
    if kind != "cuda":
        return ()
    chosen = [*map(int, numbers.split(","))] if numbers else range(visible_gpu_count())
    return tuple(f"cuda:{index}" for index in chosen) if len(chosen) > 1 else ()


def isolated_device(device: str) -> tuple[str, Mapping[str, str]]:
    """Return a device's name in a process that sees only this GPU, and the variables that hide the
    rest.

    The driver of such a process initialises one GPU, not all.
    """
    kind, _, number = device.partition(":")
    return ("cuda:0", {VARIABLE: visible_name(int(number))}) if kind == "cuda" else (device, {})


def isolate_device(device: str) -> str:
    """Hide all GPUs but one from this process, before it starts the driver; return its new name.

    For a process that was started before its GPU was chosen; otherwise the parent process sets the
    variables.
    """
    alone, variables = isolated_device(device)
    os.environ.update(variables)
    return alone


_UUID_DIGITS = 8
"""Leading digits of a UUID that distinguish the GPUs of a machine."""


def name_on_machine(device: str) -> str:
    """Return a device name that is the same in all processes of the machine.

    Batch systems show each process its GPU as number 0, so the name holds the UUID; a GPU that
    cannot be used keeps its name. Starts the driver.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        return device
    uuids = [gpu.uuid for gpu in usable_gpus() if gpu.index == int(number)]
    return f"cuda:{uuids[0][:_UUID_DIGITS]}" if uuids else device


def early_gpu_context(requested: str) -> AbstractContextManager[None]:
    """Create the context of the GPU behind a device name and load the CUDA packages, in threads,
    during the block. For a single GPU only: each of several is opened by a process of its own.
    """
    return early_context(lambda: _only_gpu(requested), _gpu_opener)


def _gpu_opener() -> object:
    """Return the function that opens a network on a GPU; importing it loads the CUDA packages."""
    from .cuda.patches.patch_generator import open_cuda_generator

    return open_cuda_generator


def _only_gpu(requested: str) -> int | None:
    kind, _, numbers = requested.partition(":")
    if kind not in ("auto", "cuda"):
        return None
    if numbers:
        return int(numbers) if numbers.isdigit() else None
    usable = [gpu.index for gpu in usable_gpus()]
    return usable[0] if len(usable) == 1 or (usable and requested == "auto") else None


def without_openvino_converter() -> None:
    """Have OpenVINO imported without its converter of models, if it is not imported yet.

    It provides for that, and takes 40 ms in place of 70. For processes of this program alone: other
    programs may convert models.
    """
    sys.modules.setdefault("openvino.tools.ovc", cast(ModuleType, None))


if TYPE_CHECKING:
    from .model.model_file import Model


def early_model(path: Path) -> "Callable[[], Model]":
    """Start reading a model file in a thread; return a function that waits for the model.

    It raises what `load_model` raises. Reading and hashing the weights takes 0.1 s, most of it
    without Python's lock.
    """
    from concurrent.futures import ThreadPoolExecutor

    background = ThreadPoolExecutor(1, "model")
    reading = background.submit(_loaded, path)
    background.shutdown(wait=False)
    return reading.result


def _loaded(path: Path) -> "Model":
    from .model.model_file import load_model

    return load_model(path)
