"""Options of `translate` and of commands that queue its jobs: studies and their results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ...engine.options import NO_LIMITS
from ...io.formats.nibabel_alone import import_nibabel_alone
from ...io.links import Links
from ...pipelines.errors import SettingsError
from ...pipelines.option import Effect, Option, Rules, Shown, options_in
from ...pipelines.settings import FIELDS, OPTIONS, CycleCheck, TranslateOptions
from ...pipelines.shard import Shard
from ..render.text import flagged
from ..render.text import option as option_name
from .groups import DeviceOptions
from .spelling import TypedAs
from .translate import (
    ChannelPatterns,
    ExcludeGlobs,
    IncludeGlobs,
    Modality,
    SeriesPattern,
    parsed_choice,
    parsed_globs,
)
from .values import (
    VolumeChoice,
    checked_device,
    parsed_overlap,
    parsed_patch,
    parsed_suffixes,
    parsed_volume,
    wrong_value,
)

if TYPE_CHECKING:
    from ...pipelines.request import Request


_UNLIKE_FIELD: dict[str, tuple[Any, Any]] = {
    "volume": (Annotated[VolumeChoice | None, parsed_volume], None),
    "patch": (str | None, None),
    "overlap": (Annotated[float | None, parsed_overlap], None),
    "bids_suffix": (str, ""),
    "cycle_check": (Path | None, None),
    "cycle_map": (bool, False),
}
"""Type and default of parameters whose typed value is converted to that of their field."""

_FIELD_OF = {
    option.shown.name.replace("-", "_"): field for field, option in options_in(TranslateOptions)
}


def _parameters() -> Iterator[Parameter]:
    held = {field.name: (field.type, field.default) for field in fields(TranslateOptions)}
    for name, field in _FIELD_OF.items():
        kind, default = _UNLIKE_FIELD.get(name, held[field])
        annotation = Annotated[kind, OPTIONS[name.replace("_", "-")]]
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


PARAMETERS = {parameter.name: parameter for parameter in _parameters()}
"""Parameters of a command for all options of studies, by name."""


def typed_options(values: Mapping[str, Any]) -> TranslateOptions:
    """Convert typed values, by parameter; missing ones have their default. Raises BadParameter."""
    typed = {name: values.get(name, one.default) for name, one in PARAMETERS.items()}
    volume = typed["volume"] or VolumeChoice()
    read: dict[str, Any] = {
        "patch": parsed_patch(typed["patch"]),
        "cycle_check": _cycle_check(typed["cycle_check"], has_map=typed["cycle_map"]),
        "bids_suffix": parsed_suffixes(typed["bids_suffix"]),
        "volume_index": volume.index,
        "every_volume": volume.every,
    }
    plain = {field: typed[name] for name, field in _FIELD_OF.items()}
    try:
        options = TranslateOptions(**{**plain, **read})
        options.check_together()
    except SettingsError as error:
        name = next(name for name, field in FIELDS.items() if field == error.settings[0])
        raise wrong_value(option_name(name), flagged(str(error))) from None
    return options


def _cycle_check(model: Path | None, *, has_map: bool) -> CycleCheck | None:
    if model:
        return CycleCheck(str(Path(model)), has_map=has_map)
    if has_map:
        raise wrong_value("--cycle-map", "needs --cycle-check.")
    return None


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Options for studies and their results, shared by batches and queued jobs."""

    model: Annotated[
        Path,
        Option(
            "Model file written by 'model import'.",
            Shown("Input", 1, "FILE", short="m"),
            Rules(Effect.HARMLESS, of_route=True),
        ),
    ]
    output: Annotated[
        Path,
        Option(
            "Folder for the results, which mirrors the inputs; for one scan, also a file.",
            Shown("Result", 1, "DIR|FILE", short="o"),
            Rules(Effect.WRITES),
        ),
    ]
    options: Annotated[TranslateOptions, TypedAs(PARAMETERS, typed_options)]
    include: IncludeGlobs = None
    exclude: ExcludeGlobs = None
    channel: ChannelPatterns = None
    modality: Modality = ""
    series: SeriesPattern = ""

    def request(
        self,
        inputs: Sequence[Path],
        on: DeviceOptions | None = None,
        *,
        show_phi: bool = False,
        links: Links = "inside",
        shard: Shard | None = None,
    ) -> "Request":
        """Return the request; on: None leaves the device to a worker. Raises BadParameter."""
        globs = parsed_globs(self.include, self.exclude)
        filters = parsed_choice(self.modality, self.series, self.channel, globs, show_phi=show_phi)
        options = replace(self.options, links=links)
        device = checked_device(on.device) if on else "auto"
        limits = on.limits() if on else NO_LIMITS
        import_nibabel_alone()
        from ...pipelines.request import Request
        from ...pipelines.results.names import is_result_file  # late: these load libraries

        folder, result = self.output, ""
        if is_result_file(self.output):
            folder, result = self.output.parent, self.output.name
            if options.output_format == "dicom":
                raise wrong_value("--output", "a DICOM result is a folder; give a folder.")
            if options.result_name or options.layout != "mirror":
                named = "--result-name" if options.result_name else "--layout"
                raise wrong_value(named, "--output already names the result; give a folder there.")
        return Request(
            tuple(inputs), self.model, folder, result, device, limits, options, filters, shard
        )


@dataclass(frozen=True, slots=True)
class ArrivingStudyOptions(StudyOptions):
    """Options for studies that keep arriving: results go to a folder, never to a single file."""

    output: Annotated[
        Path,
        Option(
            "Folder for the results, which mirrors the inputs.",
            Shown("Result", 1, "DIR", short="o"),
            Rules(Effect.WRITES),
        ),
    ]
