"""Groups of options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...engine.options import TUNING_SECONDS, CudaLimits
from ...io.links import Links
from ...pipelines.option import Effect, Option, Rules, Shown
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
    """Options for the inputs searched for scans."""

    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="INPUT...", help="Scan files, or folders that are searched for scans."
        ),
    ] = None
    more: Annotated[
        list[Path] | None,
        Option(
            "Same as INPUT.",
            Shown("Input", metavar="INPUT", name="input", short="i"),
            Rules(Effect.WIDENS_PRIVACY),
        ),
    ] = None
    follow_links: FollowLinks = False

    def paths(self) -> list[Path]:
        """Return the inputs from arguments and options. Raises BadParameter if there is none."""
        paths = [*(self.inputs or ()), *(self.more or ())]
        if not paths:
            raise wrong_value("INPUT...", "give scan files or folders.")
        return paths

    @property
    def links(self) -> Links:
        """Links below the inputs that are followed."""
        return links_of(follow=self.follow_links)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Options for the device, in commands that compute themselves."""

    device: DeviceName = "auto"
    vram_limit: VramLimit = None
    threads: Threads = None
    batch: BatchSize = "auto"
    tune: Tune = "auto"
    tune_seconds: TuneSeconds = TUNING_SECONDS

    def limits(self) -> CudaLimits:
        """Return the limits of a program on a device. Raises BadParameter."""
        return cuda_limits(self.vram_limit, self.tune, self.tune_seconds, self.batch, self.threads)
