"""What the commands ask for that leave translating to workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..engine.devices import Precision
from ..io.choice import Choice
from ..pipelines.settings import Blend, Extras

if TYPE_CHECKING:
    from ..pipelines.translate import Request

Seams: TypeAlias = Annotated[
    bool, typer.Option("--seam-score", help="Measure how visible the tile borders are.")
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its inputs."""

    model: Path
    output: Path
    precision: Precision | None
    patch: tuple[int, int, int] | None
    overlap: float
    blend: Blend
    volume_index: int | None
    choice: Choice
    overwrite: bool
    extras: Extras

    def request(self, inputs: Sequence[Path]) -> "Request":
        """The request for these inputs."""
        from ..pipelines.translate import Request

        return Request(
            inputs=tuple(inputs),
            model=self.model,
            output=self.output,
            precision=self.precision,
            patch=self.patch,
            overlap=self.overlap,
            blend=self.blend,
            volume_index=self.volume_index,
            choice=self.choice,
            overwrite=self.overwrite,
            extras=self.extras,
        )
