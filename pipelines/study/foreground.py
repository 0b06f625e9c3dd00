"""Window on the model's grid around the values of a study that are above 0."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...engine.model.model_card import ModelCard
from ...io.volume import AnyArray, Volume
from .grid_windows import PlacedWindow, placed
from .intensities import Mask
from .plan import StudyPlan
from .prepare import on_grid, prepare
from .resampling import Resampling


def measured_window(
    volumes: Sequence[Volume], plan: StudyPlan, card: ModelCard
) -> PlacedWindow | None:
    """Return the window of a card where it depends on the values of scans, else that of the plan.

    The values are those of the scans if their intensities are mapped afterwards, and network
    intensities otherwise. Raises PreparationError if nothing would be left.
    """
    rule = card.grid_window
    if rule is None or not rule.is_measured:
        return plan.window
    channels = _channels(volumes, plan, card)

    def above_0(window: PlacedWindow) -> Mask:
        return np.any([_cut(values, window) > 0 for values in channels], axis=0)

    def above_rounded_0(window: PlacedWindow) -> Mask:
        found = above_0(window)
        zeros = np.any([_cut(values, window) == 0 for values in channels], axis=0)
        for axis, rows in enumerate(_on_voxels(plan.resampling, window)):
            zero, inside = np.moveaxis(zeros, axis, 0), np.moveaxis(found, axis, 0)
            near = np.zeros_like(inside)
            near[1:] |= inside[:-1]
            near[:-1] |= inside[1:]
            inside |= near & zero & rows[:, None, None]
        return found

    made = placed(rule, plan.grid, above_0)
    if plan.resampling is None:
        return made
    other = placed(rule, plan.grid, above_rounded_0)
    return replace(made, depends_on_rounding=other != made)


def _channels(volumes: Sequence[Volume], plan: StudyPlan, card: ModelCard) -> Sequence[AnyArray]:
    """Return the values of all scans on the whole grid of the model, [D, H, W] each."""
    if card.maps_on != "window":
        layout = replace(plan.layout, extents=plan.grid)
        whole = prepare(volumes, replace(plan, window=None, layout=layout), card)
        return [*whole.network_input.values]
    parts = [plan.part(volume) for volume in volumes]
    if resample := plan.resampling:
        parts = [on_grid(volume, plan.orientation, resample) for volume in parts]
    return [plan.orientation.oriented(volume.values()) for volume in parts]


def _cut(values: AnyArray, window: PlacedWindow) -> AnyArray:
    made = np.empty(window.extents, np.float32)
    window.cut(values, made)
    return made


_ROUNDING = 1e-6
"""Voxels of a scan within which a coordinate counts as that of a voxel."""


def _on_voxels(resample: Resampling | None, window: PlacedWindow) -> Sequence[Mask]:
    """Return along each axis of a window which of its rows lie on rows of the scan.

    A code that interpolates at an exact voxel, give or take rounding, adds a trace of the next one.
    """
    found = list[Mask]()
    for axis, extent in enumerate(window.extents):
        if resample is None:
            found.append(np.zeros(extent, np.bool_))
            continue
        start = window.inside[axis][0] - window.before[axis]
        rows = start + np.arange(extent)
        places = resample.first(axis) + rows * resample.steps[axis]
        found.append(np.abs(places - np.round(places)) < _ROUNDING)
    return found
