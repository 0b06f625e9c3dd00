"""Options that several commands take alike, each group spelled once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...engine.options import NO_LIMITS, TUNING_SECONDS, CudaLimits
from ...io.choice import FEWEST_SLICES
from ...io.formats.nibabel_alone import import_nibabel_alone
from ...io.links import Links
from ...pipelines.settings import CycleCheck, TranslateOptions
from .translate import (
    AllowUneven,
    AnyModality,
    Arithmetic,
    BatchSize,
    Blending,
    ChannelPatterns,
    CycleMap,
    CycleModel,
    DeviceName,
    Flips,
    FollowLinks,
    HowAtOnce,
    Inputs,
    KeepPrivate,
    MinSlices,
    Modality,
    ModelFile,
    MoreInputs,
    NanTo,
    Output,
    OutputFolder,
    Overlap,
    Overwrite,
    Patch,
    Preview,
    ResampleChannels,
    ResultFormat,
    Seams,
    SeriesPattern,
    StrictInput,
    Tune,
    TuneSeconds,
    VerifiedTiles,
    VolumeIndex,
    VramLimit,
    links_of,
    parsed_choice,
)
from .values import checked_device, checked_flips, checked_value, cuda_limits, parsed_patch

if TYPE_CHECKING:
    from ...pipelines.request import Request


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where scans are looked for."""

    inputs: Inputs = None
    more: MoreInputs = None
    follow_links: FollowLinks = False

    def paths(self) -> list[Path]:
        """Those given as arguments and as options. Raises BadParameter if there is none."""
        paths = [*(self.inputs or ()), *(self.more or ())]
        if not paths:
            raise typer.BadParameter("name scan files or folders.", param_hint="'INPUT...'")
        return paths

    @property
    def links(self) -> Links:
        """Which of those below the inputs are followed."""
        return links_of(follow=self.follow_links)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What computes, for those commands that compute themselves."""

    device: DeviceName = "auto"
    vram_limit: VramLimit = None
    batch: BatchSize = "auto"
    tune: Tune = "full"
    tune_seconds: TuneSeconds = TUNING_SECONDS

    def limits(self) -> CudaLimits:
        """What a program on a card may take. Raises BadParameter."""
        return cuda_limits(self.vram_limit, self.tune, self.tune_seconds, self.batch)


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Which studies become what: the same for a batch now and for jobs of a queue."""

    model: ModelFile
    output: Output
    overwrite: Overwrite = False
    preview: Preview = False
    output_format: ResultFormat = "same"
    inference: HowAtOnce = None
    overlap: Overlap = 0.25
    blend: Blending = "gaussian"
    precision: Arithmetic = None
    patch: Patch = None
    volume: VolumeIndex = None
    nan_to: NanTo = None
    channel: ChannelPatterns = None
    resample_channels: ResampleChannels = False
    strict_input: StrictInput = False
    modality: Modality = ""
    any_modality: AnyModality = False
    series: SeriesPattern = ""
    min_slices: MinSlices = FEWEST_SLICES
    allow_uneven: AllowUneven = False
    keep_private_tags: KeepPrivate = False
    seam_score: Seams = False
    verify: VerifiedTiles = 0
    cycle_check: CycleModel = None
    cycle_map: CycleMap = False
    spread: Flips = 0

    def request(
        self,
        inputs: Sequence[Path],
        on: DeviceOptions | None = None,
        *,
        show_phi: bool = False,
        links: Links = "inside",
    ) -> "Request":
        """What the options ask for; on: None leaves the device to a worker. Raises BadParameter."""
        filters = parsed_choice(self.modality, self.series, self.channel, show_phi=show_phi)
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
                raise typer.BadParameter("a DICOM result is a folder.", param_hint="'--output'")
        return Request(tuple(inputs), self.model, folder, result, device, limits, options, filters)

    def _cycle_check(self) -> CycleCheck | None:
        if self.cycle_check:
            return CycleCheck(str(self.cycle_check), has_map=self.cycle_map)
        if self.cycle_map:
            raise typer.BadParameter("needs --cycle-check.", param_hint="'--cycle-map'")
        return None

    def _options(self, links: Links) -> TranslateOptions:
        return TranslateOptions(
            patch=parsed_patch(self.patch),
            overlap=self.overlap,
            blend=self.blend,
            precision=self.precision,
            volume_index=self.volume,
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
            nan_to=checked_value("--nan-to", self.nan_to),
            resample_channels=self.resample_channels,
            inference=self.inference,
            strict_input=self.strict_input,
            cycle_check=self._cycle_check(),
        )


@dataclass(frozen=True, slots=True)
class ArrivingStudyOptions(StudyOptions):
    """The same for studies of which more may come: their results have a folder, and no file."""

    output: OutputFolder


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command as typer takes it: parameters that are groups are spelled out as their options."""
    asked = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in asked if is_dataclass(p.annotation)}

    def spelled_out(**values: Any) -> None:
        for name, group in groups.items():
            options = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**options)
        command(**values)

    parameters: list[inspect.Parameter] = []
    for parameter in asked:
        if parameter.name in groups:
            parameters += map(_parameter, fields(groups[parameter.name]))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    spelled_out.__doc__ = command.__doc__
    setattr(spelled_out, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return spelled_out


def _parameter(field: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=default, annotation=field.type)
