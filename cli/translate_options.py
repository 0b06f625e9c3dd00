"""Options of `translate` that `plan` takes as well."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from ..engine.limits import Effort
from ..engine.precision import Precision
from ..io.choice import OutputFormat
from ..pipelines.settings import Blend

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
