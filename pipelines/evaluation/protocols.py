"""Evaluation protocols, which make the figures of two sites comparable."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from ..errors import ComparisonError
from ..hounsfield import AIR_HU, LOWEST_HU
from ..study.statistics import Range
from .images import Flags, Images, StoredImage
from .label_overlap import LabelOverlap, mean_dice, mean_hd95
from .metrics import Census, SimilarityRule, census, differences, lowest, similarity
from .mutual_information import normalised_mutual_information
from .tissue_metrics import TissueMetrics, tissue_metrics

ProtocolName: TypeAlias = Literal["general", "synthrad2025"]

Outside: TypeAlias = float | Literal["below-air", "none"]
"""Values of the truth that fill what lies outside its field of view: this one, those below
LOWEST_HU in a CT, or none.
"""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Rules of an evaluation protocol.

    name: its name as an option. data_range: range of all studies; None takes each truth's own, from
    the least to the greatest value that counts. clips: whether values are clipped to it for all
    metrics but the mean absolute error and Pearson's r. is_of_ct: whether the truth must be a CT in
    Hounsfield units. rule: rule of the structural similarity. outside: values of the truth outside
    its field of view, whose voxels do not count.
    """

    name: ProtocolName
    data_range: Range | None
    clips: bool
    is_of_ct: bool
    rule: SimilarityRule
    outside: Outside = "none"


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


def general(ends: tuple[float, float] | None, outside: Outside = "below-air") -> Protocol:
    """Return the protocol for any contrast, which follows the published definitions.

    ends: ends of the data range of all studies; None takes each truth's own. outside: values of the
    truth outside its field of view.
    """
    data_range = Range(*ends) if ends else None
    rule = SimilarityRule(
        sample_covariance=False, weighs_voxels=False, halves_from_zero=False, fewest=112
    )
    return Protocol("general", data_range, False, False, rule, outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Metrics of one result against its truth.

    mae: mean absolute error, in the truth's unit. psnr: peak signal-to-noise ratio in decibels;
    None if both are equal. ms_ssim, ssim: structural similarity, 1 if both are equal; None if the
    mask leaves nothing to compare. r: Pearson's correlation; None if one is constant. me: mean of
    result - truth. rmse: root mean square error. gaussian_ssim: as ssim, in a Gaussian window. nmi:
    normalised mutual information; None if both are constant. tissues: metrics per tissue; None if
    the truth is no CT. labels: overlap of each label of the segmentations; none without these.
    """

    mae: float
    psnr: float | None
    ms_ssim: float | None
    ssim: float | None
    r: float | None
    me: float | None = None
    rmse: float | None = None
    gaussian_ssim: float | None = None
    nmi: float | None = None
    tissues: TissueMetrics | None = None
    labels: tuple[LabelOverlap, ...] = ()

    @property
    def dice_labels(self) -> float | None:
        """Mean Dice coefficient of the labels; None without segmentations."""
        return mean_dice(self.labels)

    @property
    def hd95_labels(self) -> float | None:
        """Mean 95 % surface distance of the labels that both images have, in millimetres."""
        return mean_hd95(self.labels)


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """Metrics of a pair, and the data they were computed from.

    figures: all metrics. data_range: range with which they were computed. voxels: number of voxels
    that count. truth: range from the least to the greatest truth that counts. beyond: number of
    truth values outside of the data range. outside: number of voxels outside the truth's field of
    view, which would count otherwise. inside: [k, j, i], the voxels that count; None if all do. at:
    plane k, row j and column i to show, as in `Differences`.
    """

    figures: Figures
    data_range: Range
    voxels: int
    truth: Range
    beyond: int
    outside: int
    inside: Flags | None
    at: tuple[int, int, int]


def measure(images: Images, protocol: Protocol, modality: str | None = None) -> MeasuredPair:
    """Compare a result with its truth. Raises ComparisonError if the protocol does not apply.

    modality: the truth's, as in DICOM; if it is unknown, the truth counts as a CT if it has air in
    Hounsfield units.
    """
    is_ct = modality == "CT" or (modality is None and lowest(images.truth) <= AIR_HU)
    images, outside = _in_field_of_view(images, protocol.outside, is_ct=is_ct)
    found = census(images)
    data_range = _checked(found, protocol, outside)
    assert found.within
    apart = differences(images, data_range, clips=protocol.clips)
    alike = similarity(images, data_range, protocol.rule, clips=protocol.clips)
    figures = Figures(
        mae=apart.mae,
        psnr=apart.psnr,
        ms_ssim=alike.ms_ssim,
        ssim=alike.ssim,
        r=apart.r,
        me=apart.me,
        rmse=apart.rmse,
        gaussian_ssim=alike.gaussian,
        nmi=normalised_mutual_information(images),
        tissues=tissue_metrics(images) if is_ct else None,
    )
    return MeasuredPair(
        figures=figures,
        data_range=data_range,
        voxels=found.voxels,
        truth=found.within,
        beyond=apart.beyond,
        outside=outside,
        inside=images.inside,
        at=apart.at,
    )


def _in_field_of_view(images: Images, outside: Outside, *, is_ct: bool) -> tuple[Images, int]:
    """Return the images without the voxels outside the truth's field of view, and their number.

    The truth alone decides: a result that lacks what the truth has is in error there.
    """
    if outside == "none" or (outside == "below-air" and not is_ct):
        return images, 0
    flags = np.empty(images.extents, np.bool_)
    count = 0
    for plane in range(images.extents[0]):
        inside = images.flags(slice(plane, plane + 1))
        flags[plane] = inside[0] & ~_filled(images.truth, plane, outside)
        count += int(np.count_nonzero(inside)) - int(np.count_nonzero(flags[plane]))
    return (replace(images, inside=flags), count) if count else (images, 0)


def _filled(truth: StoredImage, plane: int, outside: Outside) -> Flags:
    """Return which voxels of a plane have the values outside the field of view."""
    values = truth.values(slice(plane, plane + 1))[0]
    if isinstance(outside, str):
        return values < LOWEST_HU
    step = abs(truth.slope) if truth.voxels.dtype.kind in "iu" else 0.0
    return np.isclose(values, outside, rtol=1e-6, atol=step / 2)


def _checked(found: Census, protocol: Protocol, outside: int) -> Range:
    """Return the data range. Raises ComparisonError if the images cannot be compared."""
    if not found.voxels:
        raise ComparisonError(
            "No voxel counts: the mask is empty, or all of the truth in it is outside its field of "
            "view (setting outside)."
            if outside
            else "The mask is empty, so there is nothing to compare."
        )
    for name, count in zip(("truth", "result"), found.unusable, strict=True):
        if count:
            raise ComparisonError(
                f"{count} of {found.voxels} voxels of the {name} are not finite; mask them out or "
                "correct the file."
            )
    if protocol.is_of_ct and not found.lowest <= AIR_HU:
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
