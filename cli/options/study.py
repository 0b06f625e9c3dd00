"""Options of `translate` and of all that queue its work: which studies become what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.options import NO_LIMITS, Inference
from ...io.choice import FEWEST_SLICES, OutputFormat
from ...io.formats.nibabel_alone import import_nibabel_alone
from ...io.links import Links
from ...pipelines.settings import (
    MOST_FLIPS,
    MOST_OVERLAP,
    Blend,
    CycleCheck,
    FolderLayout,
    OutputType,
    TranslateOptions,
)
from .groups import DeviceOptions
from .help_panels import DICOM, INPUT, RESULT, SPEED
from .translate import (
    AllowSynthetic,
    AllowUneven,
    AnyContrast,
    AnyModality,
    Arithmetic,
    ChannelPatterns,
    ExcludeGlobs,
    IncludeGlobs,
    MinSlices,
    Modality,
    SeriesPattern,
    VolumeIndex,
    parsed_choice,
    parsed_globs,
)
from .values import (
    VolumeChoice,
    checked_device,
    checked_flips,
    checked_name,
    checked_value,
    parsed_patch,
    parsed_suffixes,
    wrong_value,
)

if TYPE_CHECKING:
    from ...pipelines.request import Request


RESULT_NAMES = "Names of the results, such as {stem}_{target}synth{ext}; else the scans'."


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Which studies become what: the same for a batch now and for jobs of a queue."""

    model: Annotated[
        Path,
        typer.Option(
            "--model",
            "-m",
            metavar="FILE",
            help="Model file, as 'model import' makes it.",
            rich_help_panel=INPUT,
        ),
    ]
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR|FILE",
            help="Folder for the results, which mirrors the inputs; or one's file.",
            rich_help_panel=RESULT,
        ),
    ]
    result_name: Annotated[
        str,
        typer.Option(
            "--result-name",
            "--name",
            metavar="PATTERN",
            help=RESULT_NAMES,
            rich_help_panel=RESULT,
        ),
    ] = ""
    layout: Annotated[
        FolderLayout,
        typer.Option(
            "--layout",
            metavar="mirror|bids",
            help="Of the output folder: as the inputs lie, or a BIDS derivative dataset.",
            rich_help_panel=RESULT,
        ),
    ] = "mirror"
    bids_suffix: Annotated[
        str,
        typer.Option(
            "--bids-suffix",
            metavar="SUFFIX",
            help="Suffix of the results in a BIDS dataset, such as T2w.  [default: by the model's "
            "target]",
            rich_help_panel=RESULT,
        ),
    ] = ""
    sidecar: Annotated[
        bool,
        typer.Option(
            "--sidecar",
            help="Beside each result, a JSON file about how it was made; always in BIDS datasets.",
            rich_help_panel=RESULT,
        ),
    ] = False
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite/--skip-existing",
            help="Make all results anew, or keep those that are up to date.",
            rich_help_panel=RESULT,
        ),
    ] = False
    preview: Annotated[
        bool,
        typer.Option(
            "--preview",
            help="Beside each result, a picture of middle slices.",
            rich_help_panel=RESULT,
        ),
    ] = False
    output_format: Annotated[
        OutputFormat,
        typer.Option(
            "--format",
            metavar="same|nifti|nrrd|mha|dicom",
            help="Of the results; a DICOM series becomes a derived series in its study.",
            rich_help_panel=RESULT,
        ),
    ] = "same"
    output_type: Annotated[
        OutputType | None,
        typer.Option(
            "--output-type",
            metavar="same|int16|uint16|float32",
            help="Voxel type of the results.  [default: the scan's if it holds the values]",
            rich_help_panel=RESULT,
        ),
    ] = None
    inference: Annotated[
        Inference | None,
        typer.Option(
            "--inference",
            metavar="patches|volume",
            help="Blend tiles, or run the network over each volume at once.  "
            "[default: the model's]",
            rich_help_panel=RESULT,
        ),
    ] = None
    overlap: Annotated[
        float,
        typer.Option(
            metavar="0..0.9",
            min=0.0,
            max=MOST_OVERLAP,
            help="Share of a tile's edge that neighbours share.",
            rich_help_panel=RESULT,
        ),
    ] = 0.25
    blend: Annotated[
        Blend,
        typer.Option(
            metavar="gaussian|linear|constant",
            help="Weights where tiles overlap.",
            rich_help_panel=RESULT,
        ),
    ] = "gaussian"
    precision: Arithmetic = None
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="D,H,W",
            help="Extents of a tile.  [default: the model's]",
            rich_help_panel=SPEED,
        ),
    ] = None
    volume: VolumeIndex = None
    nan_to: Annotated[
        float | None,
        typer.Option(
            "--nan-to",
            metavar="VALUE",
            help="Take NaN in a scan as this value, in the scan's unit; else refused.",
            rich_help_panel=INPUT,
        ),
    ] = None
    include: IncludeGlobs = None
    exclude: ExcludeGlobs = None
    any_contrast: AnyContrast = False
    allow_synthetic: AllowSynthetic = False
    channel: ChannelPatterns = None
    resample_channels: Annotated[
        bool,
        typer.Option(
            "--resample-channels",
            help="Resample scans of a study onto the grid of its first channel; else refused.",
            rich_help_panel=INPUT,
        ),
    ] = False
    strict_input: Annotated[
        bool,
        typer.Option(
            "--strict-input",
            help="Refuse scans unlike those that the model was calibrated with; else noted.",
            rich_help_panel=INPUT,
        ),
    ] = False
    modality: Modality = ""
    any_modality: AnyModality = False
    series: SeriesPattern = ""
    min_slices: MinSlices = FEWEST_SLICES
    allow_uneven: AllowUneven = False
    keep_private_tags: Annotated[
        bool,
        typer.Option(
            "--keep-private-tags",
            help="Copy private elements of a DICOM source to its result; they may hold patient "
            "data.",
            rich_help_panel=DICOM,
        ),
    ] = False
    seam_score: Annotated[
        bool,
        typer.Option(
            "--seam-score", help="Measure how visible the tile borders are.", rich_help_panel=RESULT
        ),
    ] = False
    verify: Annotated[
        int,
        typer.Option(
            "--verify",
            metavar="N",
            min=0,
            help="Compute N tiles of each study again on the CPU, or its volume where that is "
            "translated at once; a study whose result differs fails.",
            rich_help_panel=RESULT,
        ),
    ] = 0
    cycle_check: Annotated[
        Path | None,
        typer.Option(
            "--cycle-check",
            metavar="FILE",
            help="Translate results back with this model; tell how far they then lie from the "
            "scans.",
            rich_help_panel=RESULT,
        ),
    ] = None
    cycle_map: Annotated[
        bool,
        typer.Option(
            "--cycle-map",
            help="With --cycle-check, store the error of each voxel as a map.",
            rich_help_panel=RESULT,
        ),
    ] = False
    spread: Annotated[
        int,
        typer.Option(
            "--spread",
            metavar="2..8",
            min=0,
            max=MOST_FLIPS,
            help="Translate with N of the 8 flips; store mean and standard deviation as maps.",
            rich_help_panel=RESULT,
        ),
    ] = 0

    def request(
        self,
        inputs: Sequence[Path],
        on: DeviceOptions | None = None,
        *,
        show_phi: bool = False,
        links: Links = "inside",
    ) -> "Request":
        """What the options ask for; on: None leaves the device to a worker. Raises BadParameter."""
        globs = parsed_globs(self.include, self.exclude)
        filters = parsed_choice(self.modality, self.series, self.channel, globs, show_phi=show_phi)
        options = self._options(links)
        device = checked_device(on.device) if on else "auto"
        limits = on.limits() if on else NO_LIMITS
        import_nibabel_alone()
        from ...pipelines.request import Request
        from ...pipelines.results.named_result import is_result_file  # late: these load libraries

        folder, result = self.output, ""
        if is_result_file(self.output):
            folder, result = self.output.parent, self.output.name
            if self.output_format == "dicom":
                raise wrong_value("--output", "a DICOM result is a folder.")
            if self.result_name or self.layout != "mirror":
                named = "--result-name" if self.result_name else "--layout"
                raise wrong_value(named, "--output names the result; name a folder there.")
        return Request(tuple(inputs), self.model, folder, result, device, limits, options, filters)

    def _cycle_check(self) -> CycleCheck | None:
        if self.cycle_check:
            return CycleCheck(str(self.cycle_check), has_map=self.cycle_map)
        if self.cycle_map:
            raise wrong_value("--cycle-map", "needs --cycle-check.")
        return None

    def _options(self, links: Links) -> TranslateOptions:
        volume = self.volume or VolumeChoice()
        return TranslateOptions(
            patch=parsed_patch(self.patch),
            overlap=self.overlap,
            blend=self.blend,
            precision=self.precision,
            volume_index=volume.index,
            every_volume=volume.every,
            overwrite=self.overwrite,
            output_format=self.output_format,
            fewest_slices=self.min_slices,
            allow_uneven=self.allow_uneven,
            preview=self.preview,
            seam_score=self.seam_score,
            verify=self.verify,
            spread=checked_flips(self.spread),
            keep_private=self.keep_private_tags,
            links=links,
            any_modality=self.any_modality,
            any_contrast=self.any_contrast,
            allow_synthetic=self.allow_synthetic,
            nan_to=checked_value("--nan-to", self.nan_to),
            resample_channels=self.resample_channels,
            inference=self.inference,
            output_type=self.output_type,
            strict_input=self.strict_input,
            cycle_check=self._cycle_check(),
            result_name=self._checked_name(),
            layout=self.layout,
            bids_suffix=parsed_suffixes(self.bids_suffix),
            sidecar=self.sidecar,
        )

    def _checked_name(self) -> str:
        """The pattern of names, which no layout may contradict."""
        checked_name(self.result_name)
        if self.layout == "bids":
            if self.result_name:
                raise wrong_value("--result-name", "--layout bids names the results.")
            if self.output_format not in ("same", "nifti"):
                raise wrong_value("--format", "--layout bids makes NIfTI files.")
        elif self.bids_suffix:
            raise wrong_value("--bids-suffix", "needs --layout bids.")
        return self.result_name


@dataclass(frozen=True, slots=True)
class QueuedStudyOptions(StudyOptions):
    """The same for jobs, where --name is the name of their batch."""

    result_name: Annotated[
        str,
        typer.Option("--result-name", metavar="PATTERN", help=RESULT_NAMES, rich_help_panel=RESULT),
    ] = ""


@dataclass(frozen=True, slots=True)
class ArrivingStudyOptions(QueuedStudyOptions):
    """The same for studies of which more may come: their results have a folder, and no file."""

    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder for the results, which mirrors the inputs.",
            rich_help_panel=RESULT,
        ),
    ]
