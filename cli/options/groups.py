"""Groups of options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ...engine.options import TUNING_SECONDS, CudaLimits, Effort
from ...io.links import Links
from ...pipelines.option import Effect, Option, Rules, Shown
from .translate import DeviceName, FollowLinks, VramLimit, links_of
from .values import DURATION_FORM, duration_from, parsed_batch, parsed_size, wrong_value


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
class LimitOptions:
    """Options for the use of a device."""

    vram_limit: VramLimit = None
    threads: Annotated[
        int | None,
        Option(
            "CPU threads of the network.  [default: one per usable core]",
            Shown("Speed", metavar="N", is_rare=True, least=1),
            Rules(Effect.HARMLESS),
        ),
    ] = None
    batch: Annotated[
        str,
        Option(
            "Patches per batch on a GPU, if its memory allows; auto uses the fastest.",
            Shown("Speed", metavar="N|auto", is_rare=True),
            Rules(Effect.HARMLESS),
        ),
    ] = "auto"
    tune: Annotated[
        Effort,
        Option(
            "Tuning level: cuDNN tactics that a GPU times per layer before its first batch: the "
            "first 8, all or none. The fastest are stored for later starts. auto times 8 for the "
            "main layer only, and others at the end of batches, for a tenth of their time.",
            Shown("Speed", metavar="auto|quick|full|off", is_rare=True),
            Rules(Effect.HARMLESS),
        ),
    ] = "auto"
    tune_seconds: Annotated[
        float,
        Option(
            f"Time limit for tuning, {DURATION_FORM}. The best tactics found by then are used.",
            Shown("Speed", metavar="DURATION", is_rare=True),
            Rules(Effect.HARMLESS),
        ),
        duration_from(0),
    ] = TUNING_SECONDS

    def limits(self) -> CudaLimits:
        """Return the limits of a program on a device. Raises BadParameter."""
        size, patches = parsed_size("--vram-limit", self.vram_limit), parsed_batch(self.batch)
        return CudaLimits(size, self.tune, self.tune_seconds, patches, self.threads)


@dataclass(frozen=True, slots=True)
class DeviceOptions(LimitOptions):
    """Options for the device, in commands that compute themselves."""

    device: DeviceName = "auto"
