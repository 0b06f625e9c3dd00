"""Evaluation protocols, which make the figures of two sites comparable."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..errors import ComparisonError
from ..study.statistics import Range
from .images import Images
from .metrics import Census, SimilarityRule, census, differences, similarity

ProtocolName: TypeAlias = Literal["general", "synthrad2025"]

CT_AIR_HU = -500.0
"""Upper limit in HU of the air in and around a patient, which every CT in Hounsfield units has."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Rules of an evaluation protocol.

    name: its name as an option. data_range: range of all studies; None takes each truth's own, from
    the least to the greatest value that counts. clips: whether values are clipped to it for all
    metrics but the mean absolute error and Pearson's r. is_of_ct: whether the truth must be a CT in
    Hounsfield units. rule: rule of the structural similarity.
    """

    name: ProtocolName
    data_range: Range | None
    clips: bool
    is_of_ct: bool
    rule: SimilarityRule


SYNTHRAD2025 = Protocol(
    name="synthrad2025",
    data_range=Range(-1024.0, 3071.0),
    clips=True,
    is_of_ct=True,
    rule=SimilarityRule(
        sample_covariance=True, weighs_voxels=True, halves_from_zero=True, fewest=97
    ),
)
"""Protocol of image_metrics.py in the challenge's evaluation (github.com/SynthRAD2025/evaluation,
commit 17cac47), whose data range of 4095 HU differs from the 4000 of its website."""


def general(ends: tuple[float, float] | None) -> Protocol:
    """Return the protocol for any contrast, which follows the published definitions.

    ends: ends of the data range of all studies; None takes each truth's own.
    """
    data_range = Range(*ends) if ends else None
    rule = SimilarityRule(
        sample_covariance=False, weighs_voxels=False, halves_from_zero=False, fewest=112
    )
    return Protocol("general", data_range, False, False, rule)


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of one result against its truth.

    mae: mean absolute error, in the truth's unit. psnr: peak signal-to-noise ratio in decibels;
    None if both are equal. ms_ssim, ssim: structural similarity, 1 if both are equal; None if the
    mask leaves nothing to compare. r: Pearson's correlation; None if one is constant.
    """

    mae: float
    psnr: float | None
    ms_ssim: float | None
    ssim: float | None
    r: float | None


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Metrics of a pair, and the data they were computed from.

    figures: all metrics. data_range: range with which they were computed. voxels: number of voxels
    that count. truth: range from the least to the greatest truth that counts. beyond: number of
    truth values outside of the data range. at: plane k, row j and column i to show, as in
    `Differences`.
    """

    figures: Figures
    data_range: Range
    voxels: int
    truth: Range
    beyond: int
    at: tuple[int, int, int]


def measure(images: Images, protocol: Protocol) -> MeasuredPair:
    """Compare a result with its truth. Raises ComparisonError if the protocol does not apply."""
    found = census(images)
    data_range = _checked(found, protocol)
    assert found.within
    apart = differences(images, data_range, clips=protocol.clips)
    alike = similarity(images, data_range, protocol.rule, clips=protocol.clips)
    figures = Figures(apart.mae, apart.psnr, alike.ms_ssim, alike.ssim, apart.r)
    return MeasuredPair(figures, data_range, found.voxels, found.within, apart.beyond, apart.at)


def _checked(found: Census, protocol: Protocol) -> Range:
    """Return the data range. Raises ComparisonError if the images cannot be compared."""
    if not found.voxels:
        raise ComparisonError("The mask is empty, so there is nothing to compare.")
    for name, count in zip(("truth", "result"), found.unusable, strict=True):
        if count:
            raise ComparisonError(
                f"{count} of {found.voxels} voxels of the {name} are not finite; mask them out or "
                "correct the file."
            )
    if protocol.is_of_ct and not found.lowest <= CT_AIR_HU:
        raise ComparisonError(
            f"The truth's lowest value is {found.lowest:g}, so it is not a CT in Hounsfield units, "
            f"where air is about -1000; protocol {protocol.name} compares nothing else."
        )
    data_range = protocol.data_range or found.within
    if data_range is None or not data_range.low < data_range.high:
        raise ComparisonError(
            "The truth has one value everywhere, which gives no data range; state one with "
            "setting data-range."
        )
    return data_range
