"""The own kernels on one card, compiled and loaded when first asked for."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ..compiler.card_properties import CardProperties
from ..compiler.kernels import KERNELS
from ..compiler.launches.launch import Launch
from ..options import Precision
from .driver import CudaModule, Stream, resident_blocks
from .nvrtc import compiled, image_key


class Kernels:
    """Kernels for one stored number; a context manager that owns the loaded modules.

    precision, card: for which they are compiled. may_begin_early: as `Context` tells.
    """

    def __init__(
        self,
        precision: Precision,
        card: CardProperties,
        cache: Path | None,
        *,
        may_begin_early: bool = False,
    ) -> None:
        self.precision: Precision = precision
        self.card = card
        self._cache = cache
        self._may_begin_early = may_begin_early
        self._modules: dict[tuple[str, str | None, bool], tuple[CudaModule, Mapping[str, str]]] = {}
        self._kernels: dict[tuple[str, str, bool], Any] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._modules.clear()
        self._kernels.clear()
        self._opened.close()

    def launch(self, stream: Stream, launch: Launch, *, early: bool = False) -> None:
        """Queue a launch.

        early: whether it may begin before what is queued has ended, for which its kernel waits by
        `follow` of order.cuh.
        """
        kernel = self.kernel(launch.source, launch.kernel, in_blocks=launch.in_blocks)
        grid = launch.grid
        if launch.cooperative:
            blocks = resident_blocks(kernel, launch.block, launch.shared, self.card)
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
            early=early and self._may_begin_early,
        )

    def image_key(self, source: str) -> str:
        """Changes with the machine code of kernels/SOURCE.cu on this card."""
        return image_key(source, self.precision, self.card.capability)

    def kernel(self, source: str, name: str, *, in_blocks: bool = False) -> Any:
        """Return a kernel of kernels/SOURCE.cu by the name that launches use.

        in_blocks: for patches that are blocks of one volume. An instance of a template is compiled
        by itself, as a network needs few of a file's.
        """
        key = source, name, in_blocks
        if key not in self._kernels:
            instance = KERNELS[source].instances.get(name)
            module, symbols = self._module(source, instance, in_blocks)
            self._kernels[key] = module.kernel(symbols[instance] if instance else name)
        return self._kernels[key]

    def _module(
        self, source: str, instance: str | None, in_blocks: bool
    ) -> tuple[CudaModule, Mapping[str, str]]:
        key = source, instance, in_blocks
        if key not in self._modules:
            image = compiled(
                source,
                self.precision,
                self.card.capability,
                self._cache,
                instances=(instance,) if instance else (),
                in_blocks=in_blocks,
            )
            module = self._opened.enter_context(CudaModule(image.code, self.card))
            self._modules[key] = module, image.symbols
        return self._modules[key]
