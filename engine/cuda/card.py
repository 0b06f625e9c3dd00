"""A card that is open, with what any program on it needs."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..options import Precision
from .cudnn import Cudnn
from .driver import Context, Stream
from .kernel_images import Kernels
from .plan_cache import TuningCache


@dataclass(frozen=True, slots=True)
class OpenCard:
    """What a program on a card needs.

    context, stream, library, kernels: open on the card. cache: what was measured on such cards.
    """

    context: Context
    stream: Stream
    library: Cudnn
    kernels: Kernels
    cache: TuningCache

    @property
    def description(self) -> str:
        """Card and library, for reports."""
        return f"{self.context.name}, cuDNN {self.library.version}"


@contextmanager
def open_card(device: int, precision: Precision, cache: Path | None) -> Generator[OpenCard]:
    """A card, as CUDA counts them; cache: folder of what is known of it, None to keep nothing."""
    with (
        Context(device) as context,
        Stream() as stream,
        Cudnn(stream) as library,
        Kernels(precision, context.card, cache, may_begin_early=context.may_begin_early) as kernels,
    ):
        valid_for = {
            "card": context.name,
            "driver": str(context.driver_version),
            "cudnn": library.version,
            "precision": precision,
        }
        yield OpenCard(context, stream, library, kernels, TuningCache(cache, valid_for))
