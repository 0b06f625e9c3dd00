"""Start of a run before its libraries are loaded: GPUs, and the reading of the model.

Imports little, as it runs before the request is checked.
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.model.model_file import Model
    from .run.spare_workers import SpareWorkers


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """Work started before libraries are loaded.

    read_model: waits for the model and returns it, or raises the error of reading it. spares:
    prewarmed workers, if there are several GPUs.
    """

    read_model: "Callable[[], Model]"
    spares: "SpareWorkers | None" = None


def may_start_early(output: Path, *, overwrites: bool, has_cycle_check: bool) -> bool:
    """Return whether GPUs may start before the search is done, as all studies will be translated.

    With a cycle check they wait: its two networks divide the GPU memory that is free beforehand.
    """
    # Path.exists raises where a name is too long.
    return (overwrites or not os.path.exists(output)) and not has_cycle_check  # noqa: PTH110


@contextmanager
def early_start(device: str, model: Path) -> Generator[EarlyStart]:
    """Start to read the model, and the GPUs of a device name: a context in this process, or for
    several GPUs a worker on each.
    """
    from ..engine.startup import early_gpu_context, early_model, several_gpus

    if several := several_gpus(device):
        from .run.spare_workers import spare_workers

        starting = spare_workers(several, model)
    else:
        starting = early_gpu_context(device)
    with starting as spares:
        yield EarlyStart(early_model(model), spares)
