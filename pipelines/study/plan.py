"""Plan of a study from its headers: grids, patches, voxel types, memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ...engine.model.intensity_maps import Steps, is_bent
from ...engine.model.model_card import GridRule, ModelCard
from ...engine.network.graph import Graph
from ...engine.network.layers import Triple, triple
from ...engine.options import Inference
from ...engine.scaling import is_taken_as_stored
from ...engine.whole_volume import padded_extents
from ...io.volume import Affine, Volume, spacing_of
from ..errors import PreparationError
from ..settings import OutputType, ResolvedOptions
from .geometry import Orientation, VoxelSpacing, orientation
from .grid_windows import PlacedWindow, placed
from .patches import Box, PatchLayout, cover
from .resampling import Resampling, is_rectangular, resampling, resizing
from .voxel_type import VoxelType, foreseen_voxel_type, voxel_type_of

INTENSITY_BYTES = np.dtype(np.float32).itemsize
"""Bytes of a network intensity."""

_MAPS = 2
"""Maps of a spread: mean and standard deviation."""

_FITTING = 13
"""Bytes of a voxel while a chain of steps is fitted: its region, and three times its value."""

PERCENT = 100


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of host memory of a study, besides a few slabs, by what is in memory at the same time.

    read: the scan, and the network's input if that is not the scan itself. translated: these and
    the output while it is blended. finished: both, and the result if it is a third array. stored:
    the result alone.
    """

    read: int
    translated: int
    finished: int
    stored: int = 0

    @property
    def peak(self) -> int:
        """The largest of these."""
        return max(self.read, self.translated, self.finished)


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """Plan for the result of one channel.

    voxel_type: None if it depends on the network's output. keeps_unit: whether its values are in
    the unit of the first scan. asked: the requested voxel type, if any.
    """

    voxel_type: VoxelType | None
    keeps_unit: bool
    asked: OutputType | None = None


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Plan of a study: how its scans are brought onto the model's grid and its results back, and
    how their voxels are stored on the way.

    orientation: from the scans' axes to the model's. resampling: None if the scans have the model's
    spacing. layout: of the model's grid, or of the window on it. is_input_as_stored: whether the
    one scan's own voxels are the network's input. results: one for each output channel.
    is_output_as_stored: whether the network fills the one result's own voxels. footprint: exact if
    the voxel types are known, else a little more than needed. inference: by patches, or of the
    whole volume. crop: part of the scans that is translated; None for all. window: on the model's
    grid; None for all of it. has_disagreement: whether the network's last channel is the
    disagreement of several.
    """

    orientation: Orientation
    resampling: Resampling | None
    layout: PatchLayout
    is_input_as_stored: bool
    results: tuple[ResultPlan, ...]
    is_output_as_stored: bool
    footprint: Footprint
    inference: Inference = "patches"
    crop: Box | None = None
    window: PlacedWindow | None = None
    has_disagreement: bool = False

    @property
    def channels(self) -> int:
        """Number of channels that the network computes."""
        return len(self.results) + self.has_disagreement

    @property
    def grid(self) -> Triple:
        """Extents of the model's grid, of which the network may get a window."""
        return self.window.grid if self.window else self.layout.extents

    @property
    def is_on_scan(self) -> bool:
        """Whether the network gets the voxels of the scan's own grid."""
        return self.resampling is None and self.window is None

    def part(self, volume: Volume) -> Volume:
        """View the part of a volume on the scan's grid that is translated."""
        if self.crop is None:
            return volume
        return replace(volume, voxels=volume.voxels[self.crop])

    @property
    def patches(self) -> int:
        """Number of patches of a translation; 1 for whole-volume inference."""
        return len(self.layout) if self.inference == "patches" else 1

    @property
    def steps(self) -> int:
        """Number of progress steps of a translation: patches, or percent of the volume."""
        return len(self.layout) if self.inference == "patches" else PERCENT


def plan_study(
    volumes: Sequence[Volume],
    card: ModelCard,
    options: ResolvedOptions,
    stride: Triple,
    *,
    in_network: bool = False,
    spreads: bool = False,
    crop: Box | None = None,
    window: PlacedWindow | None = None,
) -> StudyPlan:
    """Plan a study without looking at its voxels.

    volumes: in the model's order of channels, all on one grid. stride: the network's, see
    `Graph.stride`. in_network: keep network intensities on the host even if they could be stored as
    the scan. spreads: plan maps over several translations. crop: part of the scans to translate, by
    `crop_box`. window: on the model's grid, by `measured_window`; None if the card has none, or for
    the largest that the scan can have. Raises PreparationError if the affine or the grid is
    unusable, if the model takes another number of scans, or if there can be no spread.
    """
    check_count(volumes, card)
    if spreads and is_bent(card.maps_out[0]):
        raise PreparationError(
            "The model's results come through a logarithm or a gamma curve, so a spread would not "
            "be in their unit; omit setting spread."
        )
    volume = volumes[0]
    shape = volume.shape if crop is None else triple(edge.stop - edge.start for edge in crop)
    turned, resample, extents = _onto_model(shape, volume.affine, card)
    if card.grid_window:
        _check_extents(volume, extents)
        window = window or placed(card.grid_window, extents)
        extents = window.extents
    _check_extents(volume, extents)
    layout = cover(extents, options.patch, options.overlap, stride, card.tiling)
    is_whole = resample is None and card.crop is None and window is None
    keeps_voxels = is_whole and not in_network
    # A GPU applies one map to all channels.
    is_input_stored = (
        keeps_voxels
        and len(volumes) == 1
        and is_taken_as_stored(volume.voxels.dtype)
        and not isinstance(card.maps_in[0], Steps)
    )
    results = tuple(_results(volume, card, options.output_type))
    only = results[0].voxel_type if len(results) == 1 else None
    is_output_stored = (
        keeps_voxels
        and not spreads
        and not card.disagreement
        and only is not None
        and is_taken_as_stored(only.dtype)
        and not isinstance(card.maps_out[0], Steps)
    )
    footprint = _footprint(
        volumes,
        layout,
        results,
        is_input_stored=is_input_stored,
        is_output_stored=is_output_stored,
        blends=options.inference == "patches",
    )
    if card.disagreement:
        footprint = _with_disagreement(footprint, volume, layout)
    if any(isinstance(each, Steps) for each in (*card.maps_in, *card.maps_out)):
        footprint = replace(footprint, read=footprint.read + _FITTING * volume.voxels.size)
    grid = window.grid if window else layout.extents
    scans = len(volumes) * prod(grid) * INTENSITY_BYTES
    if (resample and card.maps_on == "grid") or card.maps_on == "window":
        footprint = replace(footprint, read=footprint.read + scans)
    if window:  # the whole grid next to it
        footprint = replace(footprint, read=footprint.read + scans)
    if spreads:
        footprint = _with_maps(footprint, volume, layout, is_resampled=not is_whole)
    return StudyPlan(
        orientation=turned,
        resampling=resample,
        layout=layout,
        is_input_as_stored=is_input_stored,
        results=results,
        is_output_as_stored=is_output_stored,
        footprint=footprint,
        inference=options.inference,
        crop=crop,
        has_disagreement=card.disagreement > 0,
        window=window,
    )


def _results(volume: Volume, card: ModelCard, asked: OutputType | None) -> Iterator[ResultPlan]:
    source = voxel_type_of(volume)
    for channel, intensity in enumerate(card.maps_out):
        voxel_type = foreseen_voxel_type(source, intensity, card.output_range, asked)
        yield ResultPlan(voxel_type, card.keeps_unit(channel), asked)


def model_extents(extents: Triple, affine: Affine, card: ModelCard) -> Triple:
    """Return the extents (D, H, W) that the network gets of a scan (i, j, k), from its header.

    affine: (4, 4), RAS+, millimetres. Raises PreparationError if it or the grid is unusable.
    """
    grid = _onto_model(extents, affine, card)[-1]
    return placed(card.grid_window, grid).extents if card.grid_window else grid


def _onto_model(
    extents: Triple, affine: Affine, card: ModelCard
) -> tuple[Orientation, Resampling | None, Triple]:
    """Return how a scan's grid (i, j, k) comes onto the model's, and its extents (D, H, W)."""
    turned = orientation(affine, card.axes)
    grid = triple(extents[axis] for axis in turned.order)
    spacing = turned.sorted_spacing(spacing_of(affine))
    if card.grid:
        resample = resizing(grid, card.grid)
    else:
        rule, wanted = card.grid_rule, card.spacing
        is_right_angled = wanted is None or _keeps_first(turned, affine, extents, rule, wanted)
        resample = resampling(
            grid, spacing, wanted, rule, turned.flips, is_right_angled=is_right_angled
        )
    return turned, resample, grid if resample is None else resample.target


def _keeps_first(
    turned: Orientation, affine: Affine, extents: Triple, rule: GridRule, wanted: VoxelSpacing
) -> bool:
    """Return whether MONAI's grid keeps the first voxel; True for the rules of others."""
    matrix = affine[:3, :3].astype(np.float64)
    if rule == "monai-scan":
        along = triple(wanted[turned.order.index(axis)] for axis in range(3))
        return is_rectangular(matrix, extents, along)
    if rule != "monai":
        return True
    signs = [-1.0 if flip else 1.0 for flip in turned.flips]
    grid = triple(extents[axis] for axis in turned.order)
    return is_rectangular(matrix[:, turned.order] * signs, grid, wanted)


def check_volume(plan: StudyPlan, graph: Graph) -> None:
    """Raise PatchShapeError if whole-volume inference is planned and impossible."""
    if plan.inference == "volume":
        padded_extents(graph, plan.layout.extents)


def check_scale(plan: StudyPlan) -> None:
    """Raise PreparationError if a result needs a slope that its file format has no field for."""
    for kind in (result.voxel_type for result in plan.results):
        if kind and (kind.slope, kind.intercept) != (1.0, 0.0):
            raise PreparationError(
                f"The values of the result fit {kind.dtype} with a slope of {kind.slope:g} only, "
                "and NRRD and MetaImage have none; use setting output-type=float32, or "
                "setting format=nifti."
            )


def _footprint(
    volumes: Sequence[Volume],
    layout: PatchLayout,
    results: Sequence[ResultPlan],
    *,
    is_input_stored: bool,
    is_output_stored: bool,
    blends: bool,
) -> Footprint:
    scans, array = (
        sum(each.voxels.nbytes for each in volumes),
        prod(layout.extents) * INTENSITY_BYTES,
    )
    voxels, widest = volumes[0].voxels.size, max(volumes[0].voxels.itemsize, INTENSITY_BYTES)
    types = (each.voxel_type for each in results)
    stored = sum(voxels * (kind.dtype.itemsize if kind else widest) for kind in types)
    depth, height, width = layout.extents
    row = min(layout.patch[0], depth) * height * width * INTENSITY_BYTES
    blended = (1 + len(results)) * row if blends else 0
    inputs = scans if is_input_stored else len(volumes) * array
    outputs = stored if is_output_stored else len(results) * array
    return Footprint(
        read=scans + (0 if is_input_stored else inputs),
        translated=inputs + outputs + blended,
        finished=inputs + outputs + (0 if is_output_stored else stored),
        stored=stored,
    )


def _with_maps(
    footprint: Footprint, volume: Volume, layout: PatchLayout, *, is_resampled: bool
) -> Footprint:
    """Add the maps of a spread, made on the model's grid and stored on the scan's."""
    outputs = _MAPS * prod(layout.extents) * INTENSITY_BYTES
    stored = _MAPS * volume.voxels.size * INTENSITY_BYTES if is_resampled else 0
    return replace(
        footprint,
        translated=footprint.translated + outputs,
        finished=footprint.finished + outputs + stored,
    )


def _with_disagreement(footprint: Footprint, volume: Volume, layout: PatchLayout) -> Footprint:
    """Add a further channel of the output, and its map on the scan's grid."""
    array = prod(layout.extents) * INTENSITY_BYTES
    depth, height, width = layout.extents
    row = min(layout.patch[0], depth) * height * width * INTENSITY_BYTES
    return replace(
        footprint,
        translated=footprint.translated + array + row,
        finished=footprint.finished + array + volume.voxels.size * INTENSITY_BYTES,
    )


def check_count(scans: Sequence[object], card: ModelCard) -> None:
    """Raise PreparationError unless there is one scan for each channel of a model."""
    names = card.input_channels
    if len(scans) != len(names):
        inputs = "1 scan was" if len(scans) == 1 else f"{len(scans)} scans were"
        takes = "1 scan" if len(names) == 1 else f"{len(names)} scans"
        raise PreparationError(
            f"The model takes {takes} of a study ({', '.join(names)}), and {inputs} given; give as "
            "many, in this order."
        )


def _check_extents(volume: Volume, extents: Triple) -> None:
    if volume.voxels.size == 0:
        held = "x".join(map(str, volume.shape))
        raise PreparationError(f"The volume of {held} has no voxels; check how it was saved.")
    if min(extents) < 2:
        raise PreparationError(
            f"On the model's grid the scan has {'x'.join(map(str, extents))} voxels, and a 3D "
            "model needs at least 2 along each axis; check the scan and its spacing."
        )
