"""An open GPU, with what any program on it needs."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..options import Precision
from .cudnn import Cudnn
from .driver import Context, Stream
from .kernel_images import Kernels


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
def open_gpu(device: int, precision: Precision, cache: Path | None) -> Generator[OpenGpu]:
    """Open a GPU, as CUDA counts them; cache: folder of compiled kernels, None to keep nothing."""
    with (
        Context(device) as context,
        Stream() as stream,
        Cudnn(stream) as library,
        Kernels(precision, context.properties, cache) as kernels,
    ):
        yield OpenGpu(context, stream, library, kernels)
