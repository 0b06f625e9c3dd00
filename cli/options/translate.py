"""Options of `translate` that other commands take as well."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ...engine.options import Effort, Precision
from ...io.choice import Choice, OutputFormat
from ...io.links import Links
from ...pipelines.settings import Blend

DEVICES = ("auto", "cpu", "cuda", "cuda:0")
"""What a shell completes; there may be more cards."""

Inputs: TypeAlias = Annotated[
    list[Path],
    typer.Argument(metavar="INPUT", help="Scan files, and folders to search for them."),
]
ModelFile: TypeAlias = Annotated[
    Path, typer.Option(metavar="FILE", help="Model file, as 'model import' makes it.")
]
Output: TypeAlias = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder for the results; mirrors the inputs.")
]
DeviceName: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N[,M]",
        autocompletion=lambda: list(DEVICES),
        help="auto takes a GPU, or else the CPU.",
    ),
]
Arithmetic: TypeAlias = Annotated[
    Precision | None,
    typer.Option(
        metavar="fp16|bf16|tf32|fp32",
        help="Arithmetic of the network.  [default: fp16 on a GPU, fp32 on the CPU]",
    ),
]
VramLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--vram-limit", metavar="SIZE", help="Memory of a GPU to use at most, such as 4GiB."
    ),
]
BatchSize: TypeAlias = Annotated[
    str,
    typer.Option(
        "--batch",
        metavar="N|auto",
        help="Tiles that a GPU translates at once, if its memory allows; auto takes what pays.",
    ),
]
Tune: TypeAlias = Annotated[
    Effort,
    typer.Option(
        metavar="quick|full|off",
        help="Which of cuDNN's plans a GPU tries before its first batch: the 8 it names first, "
        "all, or none. The fastest are kept for later starts.",
    ),
]
TuneSeconds: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.0, help="Time for that at most; what is best by then is taken."
    ),
]
Patch: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="D,H,W", help="Extents of a tile.  [default: the model's]"),
]
Overlap: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="0..0.9", min=0.0, max=0.9, help="Share of a tile's edge that neighbours share."
    ),
]
Blending: TypeAlias = Annotated[
    Blend,
    typer.Option(metavar="gaussian|linear|constant", help="Weights where tiles overlap."),
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
Verbose: TypeAlias = Annotated[
    bool, typer.Option("--verbose", help="Print the traceback of every failure.")
]


Modality: TypeAlias = Annotated[
    str, typer.Option(metavar="CT,MR,...", help="Take DICOM series of these modalities only.")
]
SeriesPattern: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="REGEX", help="Take DICOM series only whose description or label matches."
    ),
]
MinSlices: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=2, help="Fewest slices of a DICOM volume.")
]
AllowUneven: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--allow-uneven", help="Resample tilted, uneven or incomplete DICOM stacks; else refused."
    ),
]
ShowPhi: TypeAlias = Annotated[
    bool,
    typer.Option("--show-phi", help="Show texts of headers, which may name patients."),
]
FollowLinks: TypeAlias = Annotated[
    bool,
    typer.Option("--follow-links", help="Follow links that lead out of the inputs, too."),
]
KeepPrivate: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keep-private-tags",
        help="Copy private elements of a DICOM source to its result; they may hold patient data.",
    ),
]
_MODALITIES = re.compile(r"\s*[A-Za-z]{2,16}\s*(,\s*[A-Za-z]{2,16}\s*)*")


@dataclass(frozen=True, slots=True)
class Filters:
    """The options as they were given.

    modality, series: of DICOM series, empty for all. min_slices: fewest of a series that is
    translated. allow_uneven: whether uneven slices are resampled. show_phi: whether names and
    descriptions of patients may be printed. links: which symbolic links are followed.
    """

    modality: str
    series: str
    min_slices: int
    allow_uneven: bool
    show_phi: bool
    links: Links = "inside"

    def choice(self) -> Choice:
        """What they mean. Raises BadParameter."""
        if self.modality and not _MODALITIES.fullmatch(self.modality):
            raise typer.BadParameter(
                f"{self.modality!r} is no list of modalities such as CT,MR.",
                param_hint="'--modality'",
            )
        return Choice(
            modalities=frozenset(word.strip().upper() for word in self.modality.split(",") if word),
            series=self._pattern(),
            fewest_slices=self.min_slices,
            allow_uneven=self.allow_uneven,
            show_phi=self.show_phi,
            links=self.links,
        )

    def _pattern(self) -> "re.Pattern[str] | None":
        try:
            return re.compile(self.series, re.IGNORECASE) if self.series else None
        except re.error as error:
            raise typer.BadParameter(
                f"{self.series!r} is no regular expression ({error}).", param_hint="'--series'"
            ) from error


def links_of(*, follow: bool) -> Links:
    """What --follow-links means."""
    return "all" if follow else "inside"
