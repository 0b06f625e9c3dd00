"""Draft of a model card: facts about the training data, which no checkpoint contains."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ...engine.importing.checkpoint.evidence import Fact, Question
from ...engine.model.grid_window import GridWindow
from ...engine.model.intensity_maps import USUAL_RANGE, ChannelMaps, NetworkRange, has_ends
from ...engine.model.model_card import GridRule, MapsOn, ScanCrop
from ...engine.model.tiling import Tiling
from ...engine.network.layers import Triple
from ...engine.options import Inference
from ...engine.patch_grid import PatchPadding, SmallVolumePadding

Spacing: TypeAlias = tuple[float, float, float] | Literal["native"]

SMALL_VOLUME_PADDING: SmallVolumePadding = "edge"


@dataclass(frozen=True, slots=True)
class CardDraft:
    """Description of the training data; None is not stated yet.

    source, target: names of the input and output channels, in the network's order. axes, spacing,
    patch: as in ModelCard; spacing "native" keeps every scan's own. name: name of the model;
    by default formed from source and target. intensity_in, intensity_out, small_volume_padding,
    licence: as in ModelCard and its Provenance. input_range, output_range: as in ModelCard.
    output_range_stated: whether the output range was stated, and not derived from the network.
    crop, grid, grid_window, tiling, grid_rule, maps_on, inference: as in ModelCard; a grid takes
    the place of a spacing.
    """

    source: tuple[str, ...] | None = None
    target: tuple[str, ...] | None = None
    intensity_in: ChannelMaps | None = None
    intensity_out: ChannelMaps | None = None
    axes: str | None = None
    spacing: Spacing | None = None
    patch: Triple | None = None
    small_volume_padding: PatchPadding | None = None
    name: str | None = None
    licence: str | None = None
    input_range: NetworkRange | None = None
    output_range: NetworkRange | None = None
    output_range_stated: bool = False
    crop: ScanCrop | None = None
    grid_window: GridWindow | None = None
    grid: Triple | None = None
    tiling: Tiling | None = None
    grid_rule: GridRule | None = None
    maps_on: MapsOn | None = None
    inference: Inference | None = None

    def with_network(self, patch: Triple | None, output_ends: NetworkRange | None) -> "CardDraft":
        """Return the draft completed with facts from the network.

        patch: the only patch it accepts; None if it accepts others. output_ends: range of its
        output, None if its last layers do not show it. Only an output of -1..1 determines the input
        range: many networks with another output range take 0..1, and many do not.
        """
        takes = USUAL_RANGE if output_ends == USUAL_RANGE else None
        return replace(
            self,
            patch=self.patch or patch,
            input_range=self.input_range or takes or _without_ends(self.intensity_in),
            output_range=self.output_range or output_ends or _without_ends(self.intensity_out),
            output_range_stated=self.output_range is not None,
        )

    def undecided(self) -> tuple[Question, ...]:
        """Return questions on unstated facts whose wrong guess would corrupt images silently."""
        known = {"spacing"} if self.grid else set[str]()
        return tuple(
            item
            for item in _QUESTIONS
            if getattr(self, item.field) is None and item.field not in known
        )

    def assumptions(self) -> Iterator[Fact]:
        """Yield the assumptions about facts that were not stated."""
        if self.small_volume_padding is None:
            reason = (
                "padding of scans smaller than a patch; setting small-volume-padding changes it"
            )
            yield Fact("small volumes", SMALL_VOLUME_PADDING, reason)
        if not self.output_range_stated and self.output_range == "0..1":
            reason = "by the network's last layer; setting output-range changes it"
            yield Fact("output range", self.output_range, reason)
        if self.name is None and self.source and self.target:
            reason = "of the model, in reports; setting name changes it"
            yield Fact("name", default_name(self.source, self.target), reason)
        if self.licence is None:
            yield Fact("licence", "not stated", "of the weights; setting licence states it")


def _without_ends(maps: ChannelMaps | None) -> NetworkRange | None:
    """Return "open" if no intensity map has ends that could be mapped onto a range, or None."""
    if maps is None:
        return None
    each = maps if isinstance(maps, tuple) else (maps,)
    return "open" if not any(map(has_ends, each)) else None


def default_name(source: tuple[str, ...], target: tuple[str, ...]) -> str:
    """Return a model's default name, such as "T1 to CT" or "T1+FLAIR to CT"."""
    return f"{'+'.join(source)} to {'+'.join(target)}"


_MAPS = (
    "window:LOW,HIGH",
    "percentile:LOW,HIGH",
    "zscore",
    "standard:MEAN,SD",
    "minmax",
    "identity",
    "STEP+STEP@VOXELS",
)
_QUESTIONS = (
    Question(
        "source",
        ("NAME",),
        "contrast of the input: T1, T1ce (with contrast agent), T2, FLAIR, MR (any of these), CT, "
        "CBCT, PET or another; scans are checked for it, and the generator of the other direction "
        "looks the same",
    ),
    Question("target", ("NAME",), "contrast of the output, such as CT"),
    Question(
        "intensity_in",
        _MAPS,
        "how the training code mapped scan values to the network's range, [-1, 1] unless stated; "
        "another mapping changes the contrast",
    ),
    Question(
        "intensity_out",
        _MAPS,
        "how the training code mapped target scans, such as window:-1000,2000 for CT in HU; the "
        "result is mapped back",
    ),
    Question(
        "input_range",
        ("-1..1", "0..1", "open"),
        "the range onto which the training code mapped its scans; a final tanh would show it, "
        "but the network has none",
    ),
    Question(
        "output_range",
        ("-1..1", "0..1", "open"),
        "the range onto which it mapped target scans; the network's last layer does not show it. "
        "open is -1..1 for a network whose output exceeds it",
    ),
    Question(
        "axes",
        ("RAS", "LPS", "SPL", "..."),
        "where the axes of the training patches point: arrays from nibabel in canonical "
        "orientation are RAS, from SimpleITK mostly SPL",
    ),
    Question(
        "spacing",
        ("D,H,W", "native"),
        "voxel size in mm that training scans were resampled to; native if they never were",
    ),
    Question(
        "patch",
        ("D,H,W", "whole"),
        "extents of the training patches, or whole if training saw whole volumes; normalisation "
        "depends on them",
    ),
)
