"""An open GPU, with what any program on it needs: for patches as for whole volumes."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ..compiler.program.fitting import MemoryBudget
from ..options import Precision, SearchSettings
from ..whole_volume import HostBudget, no_host_limit
from .cudnn import Cudnn
from .driver import Context, Stream
from .kernel_images import Kernels


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """Options for compiling a network.

    precision: of the arithmetic. device: index of the GPU, as CUDA counts. vram_limit: bytes that
    program and arrays may take, without the CUDA context of about half a GiB; None for all that is
    free. cache: folder of compiled kernels and tuning results, None to keep nothing. search: tuning
    level. host_budget: bytes available for maps of whole volumes in pinned memory.
    """

    precision: Precision = "fp16"
    device: int = 0
    vram_limit: int | None = None
    cache: Path | None = None
    search: SearchSettings = field(default_factory=SearchSettings)
    host_budget: HostBudget = no_host_limit


@dataclass(frozen=True, slots=True)
class OpenGpu:
    """An open GPU.

    context, stream, library, kernels: open on it.
    """

    context: Context
    stream: Stream
    library: Cudnn
    kernels: Kernels

    @property
    def description(self) -> str:
        """GPU and library, for reports."""
        return f"{self.context.name}, cuDNN {self.library.version}"

    @property
    def identity(self) -> Mapping[str, str]:
        """Properties for which tuning results are valid."""
        return {
            "card": self.context.name,
            "driver": str(self.context.driver_version),
            "cudnn": self.library.version,
            "precision": self.kernels.precision,
        }


@contextmanager
def open_gpu(options: CudaOptions) -> Generator[tuple[OpenGpu, MemoryBudget]]:
    """Open a GPU, with the memory that programs may take there."""
    with (
        Context(options.device) as context,
        Stream() as stream,
        Cudnn(stream) as library,
        Kernels(options.precision, context.properties, options.cache) as kernels,
    ):
        budget = MemoryBudget(context.memory[0], options.vram_limit)
        yield OpenGpu(context, stream, library, kernels), budget
