"""The custom kernels on one GPU, loaded when first needed from an archive, or else compiled."""

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ..compiler.gpu_properties import GpuProperties
from ..compiler.kernels.launch import Launch
from ..compiler.kernels.table import KERNELS
from ..errors import CudaError
from ..options import Precision
from .driver import CudaModule, Stream, concurrent_blocks
from .kernel_archive import KernelArchive
from .nvrtc import Image, compiled, image_key


class Kernels:
    """Kernels for one element type; a context manager that owns the loaded modules.

    precision, gpu: for which they are compiled.
    """

    def __init__(self, precision: Precision, gpu: GpuProperties, cache: Path | None) -> None:
        self.precision: Precision = precision
        self.gpu = gpu
        self._cache = cache
        self._modules: dict[tuple[str, str | None, bool], tuple[CudaModule, Mapping[str, str]]] = {}
        self._kernels: dict[tuple[str, str, bool], Any] = {}
        self._opened, self._loading = ExitStack(), threading.Lock()
        self._archive = KernelArchive.open(precision, gpu.capability)
        if self._archive:
            self._opened.enter_context(self._archive)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._modules.clear()
        self._kernels.clear()
        self._opened.close()

    def launch(self, stream: Stream, launch: Launch) -> None:
        """Queue a launch."""
        kernel = self.kernel(launch.source, launch.kernel, in_blocks=launch.in_blocks)
        grid = launch.grid
        if launch.cooperative:
            blocks = concurrent_blocks(kernel, launch.block, launch.shared, self.gpu)
            shares, columns, _ = grid
            columns = min(columns, blocks)
            grid = min(shares, blocks // columns), columns, 1
        stream.launch(
            kernel,
            grid,
            launch.block,
            launch.shared,
            launch.arguments,
            cooperative=launch.cooperative,
        )

    def image_key(self, source: str) -> str:
        """Return a key that changes with the machine code of kernels/SOURCE.cu on this GPU."""
        if self._archive:
            return self._archive.key
        return image_key(source, self.precision, self.gpu.capability)

    def kernel(self, source: str, name: str, *, in_blocks: bool = False) -> Any:
        """Return a kernel of kernels/SOURCE.cu by its C++ name.

        in_blocks: for patches that are blocks of one volume. An instance of a template is compiled
        by itself, as a network needs few of a file's.
        """
        key = source, name, in_blocks
        with self._loading:
            if key not in self._kernels:
                instance = name if KERNELS[source].instances else None
                module, symbols = self._module(source, instance, in_blocks)
                self._kernels[key] = module.kernel(symbols[name] if instance else name)
            return self._kernels[key]

    def _module(
        self, source: str, instance: str | None, in_blocks: bool
    ) -> tuple[CudaModule, Mapping[str, str]]:
        key = source, instance, in_blocks
        if key not in self._modules:
            self._modules[key] = self._from_archive(*key) or self._loaded(self._compiled(*key))
        return self._modules[key]

    def _from_archive(
        self, source: str, instance: str | None, in_blocks: bool
    ) -> tuple[CudaModule, Mapping[str, str]] | None:
        """Load an image of the archive; None without one, or if the driver is too old for it."""
        image = self._archive and self._archive.image(source, instance, in_blocks=in_blocks)
        if not image:
            return None
        try:
            return self._loaded(image)
        except CudaError as error:
            if error.is_sticky:
                raise
            self._archive = None
            return None

    def _loaded(self, image: Image) -> tuple[CudaModule, Mapping[str, str]]:
        module = self._opened.enter_context(CudaModule(image.code, self.gpu))
        return module, image.symbols

    def _compiled(self, source: str, instance: str | None, in_blocks: bool) -> Image:
        return compiled(
            source,
            self.precision,
            self.gpu.capability,
            self._cache,
            instances=(instance,) if instance else (),
            in_blocks=in_blocks,
        )
