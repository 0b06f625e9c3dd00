"""Options that say how studies are translated, for the commands that leave it to workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ..engine.devices import Precision
from ..io.choice import Choice, OutputFormat
from ..pipelines.settings import Blend, Extras

if TYPE_CHECKING:
    from ..pipelines.translate import Request

ModelFile: TypeAlias = Annotated[
    Path, typer.Option(metavar="FILE", help="Model file, as 'model import' makes it.")
]
OutputFolder: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results; mirrors the inputs.")
]
PrecisionOption: TypeAlias = Annotated[
    Precision | None,
    typer.Option(
        metavar="fp16|bf16|tf32|fp32",
        help="Arithmetic of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
    ),
]
PatchOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="D,H,W", help="Extents of a tile.  [default: the model's]"),
]
Overlap: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="0..0.9", min=0.0, max=0.9, help="Share of a tile's edge that neighbours share."
    ),
]
BlendOption: TypeAlias = Annotated[
    Blend, typer.Option(metavar="gaussian|linear|constant", help="Weights where tiles overlap.")
]
VolumeIndex: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="Which volume of a 4-D file, counted from 0."),
]
ResultFormat: TypeAlias = Annotated[
    OutputFormat,
    typer.Option(
        "--format",
        metavar="same|nifti|dicom",
        help="Of the results; a DICOM series becomes a derived series in its study.",
    ),
]
Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--overwrite/--skip-existing",
        help="Make all results anew, or keep those that are up to date.",
    ),
]
Preview: TypeAlias = Annotated[
    bool, typer.Option("--preview", help="Beside each result, a picture of middle slices.")
]
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
