"""Options that several commands take alike, each group spelled once."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engine.options import TUNING_SECONDS, CudaLimits
from ...io.links import Links
from .help_panels import INPUT
from .translate import (
    BatchSize,
    DeviceName,
    FollowLinks,
    Threads,
    Tune,
    TuneSeconds,
    VramLimit,
    links_of,
)
from .values import cuda_limits, wrong_value


@dataclass(frozen=True, slots=True)
class InputOptions:
    """Where scans are looked for."""

    inputs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="INPUT...", help="Scan files, and folders to search for them."),
    ] = None
    more: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", "-i", metavar="INPUT", help="The same as an option.", rich_help_panel=INPUT
        ),
    ] = None
    follow_links: FollowLinks = False

    def paths(self) -> list[Path]:
        """Those given as arguments and as options. Raises BadParameter if there is none."""
        paths = [*(self.inputs or ()), *(self.more or ())]
        if not paths:
            raise wrong_value("INPUT...", "name scan files or folders.")
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
    threads: Threads = None
    batch: BatchSize = "auto"
    tune: Tune = "full"
    tune_seconds: TuneSeconds = TUNING_SECONDS

    def limits(self) -> CudaLimits:
        """What a program on a device may take. Raises BadParameter."""
        return cuda_limits(self.vram_limit, self.tune, self.tune_seconds, self.batch, self.threads)


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
