"""Notes on scans that do not suit a model by its card alone, without a calibration.

Each needs evidence in the voxels or the grid: values in another unit than the source's, planes
without values amid the body, voxels that are mostly interpolated, and patches that are mostly
padding.
"""

from collections.abc import Iterator
from itertools import pairwise
from operator import ge

import numpy as np
import numpy.typing as npt

from ...engine.model.intensity_maps import ClipValues, IntensityMap, Steps, Window
from ...engine.model.model_card import ModelCard
from ...engine.model.model_file import Model
from ...engine.network.graph import times
from ...engine.network.graph_analysis import sees_whole_patch
from ...engine.whole_volume import padded_extents
from ...io.contrast.texts import kinds_in
from ...io.contrast.words import ANATOMICAL_MR
from ...io.volume import AnyArray, Volume
from ..hounsfield import AIR_HU
from ..settings import ResolvedOptions
from .plan import StudyPlan
from .statistics import Range, sampled_values

_LEAST_AIR = 0.05
"""Share of the voxels that must be air before a scan counts as a CT in HU."""

_BODY_HU = (-190.0, 300.0)
"""Median of what is not air in a CT in HU: from fat to bone."""

_BRAIN_HU = (10.0, 80.0)
"""Median of a CT without air whose skull was removed: from brain to clotted blood."""

_LOW, _LOWEST_SHARE = -20.0, 0.01
"""Value below which more than this share of any CT in HU lies, because of its air and fat."""

_COARSER = 4.0
"""Length of a scan's voxels, in those of the model, above which a note is given. Sets with slices
of up to four times the model's spacing are published with their models (Medical Segmentation
Decathlon, spleen: slices of up to 8 mm, translated at 2 mm).
"""

_PER_AXIS = 24
"""Most voxels along each side of a plane that are looked at before all of them are."""


def notes_of_unit(
    source: str, intensity: IntensityMap, volume: Volume, measured: Range, *, is_calibrated: bool
) -> Iterator[str]:
    """Yield a note if a scan is evidently a CT in HU and the model's source is MR, or the source
    is CT and the scan has no HU.

    source: of the model, or of its channel. measured: range of the scan. is_calibrated: whether the
    model knows its usual scans, which may be a CT in another unit.
    """
    kinds, lowest = kinds_in(source), _lowest_taken(intensity)
    expects_hu = lowest is not None and lowest < AIR_HU
    has_air = measured.low < AIR_HU
    if kinds and kinds <= ANATOMICAL_MR and has_air and not expects_hu:
        values = sampled_values(volume)
        air = values < AIR_HU
        share, low, high = float(np.mean(air)), *_BODY_HU
        if _LEAST_AIR <= share < 1 and low <= (middle := float(np.median(values[~air]))) <= high:
            yield (
                f"its values are those of a CT in HU ({share:.0%} are below {AIR_HU:g}, and the "
                f"others have a median of {middle:.0f}), and the model translates {source}; check "
                "that it fits"
            )
    is_of_hu = (
        expects_hu if lowest is not None else kinds == frozenset({"CT"}) and not is_calibrated
    )
    if is_of_hu and kinds and kinds <= {"CT", "CBCT"} and not has_air:
        values = sampled_values(volume)
        if float(np.mean(values < _LOW)) > _LOWEST_SHARE:
            return
        filled = values[values > values.min()]
        if filled.size and not _BRAIN_HU[0] <= float(np.median(filled)) <= _BRAIN_HU[1]:
            yield (
                f"its values reach from {measured.low:g} to {measured.high:g}, and a {source} in "
                f"HU has air below {AIR_HU:g}; check its unit and that it fits"
            )


def _lowest_taken(intensity: IntensityMap) -> float | None:
    """Return the lowest value that a map does not clip; None if that depends on the scan."""
    first = intensity.steps[0] if isinstance(intensity, Steps) else intensity
    return first.low if isinstance(first, Window | ClipValues) else None


def notes_of_gaps(volume: Volume) -> Iterator[str]:
    """Yield a note for each axis with planes of one value between planes full of others, as if
    slices were missing.
    """
    for axis, name in enumerate("ijk"):
        planes = np.moveaxis(volume.voxels, axis, 0)
        gaps = [gap for gap in _constant_runs(planes) if _is_cut_out(planes, gap)]
        count = sum(len(gap) for gap in gaps)
        if count:
            first, last = gaps[0][0], gaps[-1][-1]
            where = f"from {first} to {last}" if count > 1 else f"{first}"
            words = f"{count} of its {len(planes)} planes along {name} ({where})"
            has = "have each one value" if count > 1 else "has one value"
            yield f"{words} {has}, between planes of the body; check that no slices are missing"


def _constant_runs(planes: AnyArray) -> list[range]:
    """Return the runs of planes of one value that lie between others."""
    seen = _some_of(planes).reshape(len(planes), -1)
    varied = (seen != seen[:, :1]).any(axis=1)
    ends = np.flatnonzero(varied)
    for at in np.flatnonzero(~varied).tolist():
        if ends.size and ends[0] < at < ends[-1]:
            varied[at] = (planes[at] != planes[at].flat[0]).any()
    others: list[int] = np.flatnonzero(varied).tolist()
    return [range(one + 1, two) for one, two in pairwise(others) if two > one + 1]


def _is_cut_out(planes: AnyArray, gap: range) -> bool:
    """Return whether the planes next to a gap are half as full as others, at least.

    Two legs are apart too, and taper towards the planes between them.
    """
    filled: npt.NDArray[np.float64] = np.mean(
        _some_of(planes) != planes[gap[0]].flat[0], axis=(1, 2)
    )
    usual = float(np.median(filled[filled > 0])) if filled.any() else 1.0
    return bool(min(filled[gap[0] - 1], filled[gap[-1] + 1]) >= usual / 2)


def _some_of(planes: AnyArray) -> AnyArray:
    """View evenly spaced voxels of each plane."""
    rows, columns = (max(1, extent // _PER_AXIS) for extent in planes.shape[1:])
    return planes[:, ::rows, ::columns]


def notes_of_plan(
    plan: StudyPlan, volume: Volume, model: Model, options: ResolvedOptions
) -> Iterator[str]:
    """Yield notes on how a scan lies on the model's grid and in its patches."""
    yield from notes_of_grid(plan, volume, model.card)
    if seen := smaller_than_trained(model, options):
        yield (
            f"its patches of {times(options.patch)} are smaller than the {seen} of the model, "
            "whose norms take statistics of each patch, so results differ from the training code's"
        )
    if plan.window and plan.window.depends_on_rounding:
        yield (
            "it is cropped to its values above 0 after resampling, next to which it is exactly 0; "
            "the training code's own box may have one voxel more there, which its rounding decides"
        )


def notes_of_padding(plan: StudyPlan, model: Model) -> Iterator[str]:
    """Yield a note if a whole volume is padded for the network's stride."""
    extents = plan.layout.extents
    if plan.inference != "volume":
        return
    padded = padded_extents(model.network.graph, extents)
    if padded != extents:
        yield (
            f"its {times(extents)} voxels are padded to {times(padded)} for the network by "
            "repeating the edge"
        )


def smaller_than_trained(model: Model, options: ResolvedOptions) -> str:
    """Return what the network saw at a time in training, if its patches are smaller and its norms
    take statistics of them, and "" otherwise.
    """
    card, patch = model.card, options.patch
    is_whole = card.inference == "volume"
    if options.inference == "volume":
        return ""
    is_smaller = is_whole or not all(map(ge, patch, card.patch))
    if not (is_smaller and sees_whole_patch(model.network.graph)):
        return ""
    return "whole volumes" if is_whole else f"patches of {times(card.patch)}"


def notes_of_grid(plan: StudyPlan, volume: Volume, card: ModelCard) -> Iterator[str]:
    """Yield notes on a scan with voxels far coarser than the model's, or with less than half of a
    patch along an axis.

    None for a calibrated model, which is compared with its own scans instead.
    """
    if card.expected:
        return
    if card.spacing and plan.resampling:
        spacing = plan.orientation.sorted_spacing(volume.spacing)
        coarser = [own / model for own, model in zip(spacing, card.spacing, strict=True)]
        axis = int(np.argmax(coarser))
        if coarser[axis] > _COARSER:
            yield (
                f"its voxels are {spacing[axis]:.3g} mm long along {'DHW'[axis]}, "
                f"{coarser[axis]:.2g} times those of the model ({card.spacing[axis]:.3g} mm), so "
                "most of what the network gets is interpolated"
            )
    if plan.inference == "volume" or card.inference == "volume":
        return
    extents, patch = plan.layout.extents, card.patch
    shares = [own / trained for own, trained in zip(extents, patch, strict=True)]
    axis = int(np.argmin(shares))
    if 2 * extents[axis] < patch[axis]:
        yield (
            f"it has {extents[axis]} voxels along {'DHW'[axis]} on the model's grid, and patches "
            f"of the model {patch[axis]}, so more than half of each is padding"
        )
