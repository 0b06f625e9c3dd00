"""Options that choose among DICOM series, shared by the commands that search for them."""

import re
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from ..io.choice import Choice, OutputFormat

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
    """The options as they were given."""

    modality: str
    series: str
    min_slices: int
    allow_uneven: bool
    show_phi: bool

    def choice(self, output_format: OutputFormat = "same", *, keep_private: bool = False) -> Choice:
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
            format=output_format,
            keep_private=keep_private,
        )

    def _pattern(self) -> "re.Pattern[str] | None":
        try:
            return re.compile(self.series, re.IGNORECASE) if self.series else None
        except re.error as error:
            raise typer.BadParameter(
                f"{self.series!r} is no regular expression ({error}).", param_hint="'--series'"
            ) from error
