"""Options of `translate` and of commands that queue its jobs: studies and their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ...engine.options import NO_LIMITS
from ...io.formats.nibabel_alone import import_nibabel_alone
from ...io.links import Links
from ...pipelines.option import Effect, Option, Rules, Shown
from .groups import DeviceOptions
from .translate import (
    ChannelPatterns,
    ExcludeGlobs,
    IncludeGlobs,
    Modality,
    SeriesPattern,
    parsed_choice,
    parsed_globs,
)
from .typed_settings import TypedSettings
from .values import checked_device, wrong_value

if TYPE_CHECKING:
    from ...pipelines.request import Request


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Options for studies and their results, shared by batches and queued jobs."""

    model: Annotated[
        Path,
        Option(
            "Model file, as 'model import' makes it.",
            Shown("Input", 1, "FILE", short="m"),
            Rules(Effect.HARMLESS, of_route=True),
        ),
    ]
    output: Annotated[
        Path,
        Option(
            "Folder for the results, which mirrors the inputs; or one's file.",
            Shown("Result", 1, "DIR|FILE", short="o"),
            Rules(Effect.WRITES),
        ),
    ]
    settings: TypedSettings
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
    ) -> "Request":
        """Return the request; on: None leaves the device to a worker. Raises BadParameter."""
        globs = parsed_globs(self.include, self.exclude)
        filters = parsed_choice(self.modality, self.series, self.channel, globs, show_phi=show_phi)
        options = self.settings.options(links)
        device = checked_device(on.device) if on else "auto"
        limits = on.limits() if on else NO_LIMITS
        import_nibabel_alone()
        from ...pipelines.request import Request
        from ...pipelines.results.names import is_result_file  # late: these load libraries

        folder, result = self.output, ""
        if is_result_file(self.output):
            folder, result = self.output.parent, self.output.name
            if options.output_format == "dicom":
                raise wrong_value("--output", "a DICOM result is a folder.")
            if options.result_name or options.layout != "mirror":
                named = "--result-name" if options.result_name else "--layout"
                raise wrong_value(named, "--output names the result; name a folder there.")
        return Request(tuple(inputs), self.model, folder, result, device, limits, options, filters)


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
