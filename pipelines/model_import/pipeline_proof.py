"""Proof of a model's pipeline from file to file, by the training code's result for a whole scan.

A result that differs is explained by one change of the card or not at all. Changes are compared
around the place of the largest difference. One is named only if on the whole scan it lowers the
error tenfold, and below the limit: then it explains all of the difference.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, sqrt
from pathlib import Path
from time import perf_counter

import numpy as np

from ...engine.errors import EngineError
from ...engine.importing.checkpoint.evidence import setting
from ...engine.model.intensity_maps import Identity, Window
from ...engine.model.model_card import ModelCard, PipelineProof
from ...engine.model.model_file import Model
from ...engine.network.layers import Triple, triple
from ...io.choice import Choice
from ...io.discovery import discover, only_study
from ...io.files.regular import open_regular
from ...io.reading import look_at, read
from ...io.volume import Affine, Study, Volume
from ..errors import PipelineError, SettingsError
from ..settings import TranslateOptions
from ..study.geometry import orientation, orientations
from ..study.grids import grid_difference
from ..study.selection import studies_for
from ..study.translator import StudyTranslator
from .single_changes import SingleChange, single_changes
from .whole_scan import ScanPlace, ScanValues, TranslatedScan, planned, resolved, translated

_TOLERANCE = 1e-4
"""Share of the result's range that float32 and resampling explain."""

_TENFOLD = 10
_MOST_CONFIRMED = 6
"""Candidates that are computed on the whole scan."""

SECONDS = 300.0
"""Time for changes, unless another is given."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A result that is not the training code's. difference, allowed: the largest difference and its
    limit, as shares of the result's range; infinite if the extents differ. extents: of the model's
    grid and of OUTPUT, if these differ. named: changes that each explain the difference. mirrored:
    axes of OUTPUT, from 0, along which it is a mirror image. tried, count: changes, and all.
    """

    difference: float
    allowed: float
    extents: tuple[Triple, Triple] | None = None
    named: tuple[SingleChange, ...] = ()
    mirrored: tuple[int, ...] = ()
    tried: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The training code's result [C, i, j, k], on the scan's grid along its axes or on the model's.

    range: of its values. allowed: largest difference, in its unit.
    """

    values: ScanValues
    affine: Affine
    is_on_scan: bool
    range: float
    allowed: float

    def difference(self, made: TranslatedScan) -> ScanValues | None:
        """Return the difference along the axes of `values`; None for other extents."""
        if self.is_on_scan:
            return made.on_scan() - self.values
        grid = made.on_grid()
        if self.grid(made.axes) != grid.shape[1:]:
            return None
        turned = orientation(self.affine, made.axes)
        return np.stack([turned.in_scan(channel) for channel in grid]) - self.values

    def grid(self, axes: str) -> Triple:
        """Return its extents [D, H, W] along the axes of a model."""
        return triple(orientation(self.affine, axes).oriented(self.values[0]).shape)


OnChange = Callable[[int, int], None]
"""Callback with the number of changes that were tried, and of all."""


def prove_pipeline(
    model: Model,
    scan: Path,
    output: Path,
    on_change: OnChange = lambda _tried, _count: None,
    seconds: float = SECONDS,
) -> PipelineProof | Mismatch:
    """Compare a model's result for a scan with the training code's.

    scan: file or folder of one study. output: file of a volume for each output channel, on the
    scan's grid or on the model's, in the unit of the target scans. seconds: time for changes.
    Raises EngineError, PipelineError or ScanError.
    """
    study = _study_at(scan, model.card)
    volumes = StudyTranslator(model, resolved(model)).read(study).volumes
    found = only_study(output, discover([output], None, _ANY))
    wanted = _wanted(output, found, volumes[0], len(model.card.output_channels))
    search = _Search(model, volumes, wanted, perf_counter() + seconds)
    made = search.translated(model.card)
    before = wanted.difference(made)
    largest = inf if before is None else float(np.abs(before).max())
    if largest <= wanted.allowed:
        difference, allowed = largest / wanted.range, wanted.allowed / wanted.range
        return PipelineProof(_sha256(study), _sha256(found), difference, allowed)
    return search.explained(made, before, on_change)


_ANY = Choice(take_maps=True, fewest_slices=2)


def _study_at(path: Path, card: ModelCard) -> Study:
    takes = TranslateOptions(any_contrast=True, allow_synthetic=True).takes
    found = discover([path], None, replace(_ANY, takes=takes))
    return only_study(
        path, studies_for(found, card, takes) if len(card.input_channels) > 1 else found
    )


def _sha256(study: Study) -> str:
    """Return the hash of the bytes of all files of a study, in its order."""
    digest = hashlib.sha256()
    for scan in study.channels:
        for path in scan.files:
            with open_regular(path) as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _wanted(path: Path, found: Study, scan: Volume, channels: int) -> _Wanted:
    """Read the training code's result. Raises ScanError, and SettingsError for one that proves
    nothing.
    """
    count = look_at(found, 0).volumes
    if count != channels:
        raise _refusal(
            f"{path} holds {count} volumes, but the model has {channels} output channels"
        )
    read_volumes = [read(found, index if count > 1 else None) for index in range(channels)]
    each = [_along(volume, scan) for volume in read_volumes]
    is_on_scan = grid_difference(each[0], scan) is None
    if not is_on_scan and each[0].shape == scan.shape:
        raise _refusal(
            f"{path} has the scan's extents, but {grid_difference(each[0], scan)}; write it with "
            "the scan's affine"
        )
    volumes = each if is_on_scan else read_volumes
    values = np.stack([volume.values() for volume in volumes])
    size = float(np.ptp(values))
    if not 0 < size < inf:
        raise _refusal(f"{path} has one value throughout, or values that are not finite")
    is_whole = volumes[0].voxels.dtype.kind in "iu"
    step = max(abs(volume.slope) for volume in volumes) if is_whole else 0.0
    allowed = _TOLERANCE * size + step / 2
    return _Wanted(values, volumes[0].affine, is_on_scan, size, allowed)


def _refusal(what: str) -> SettingsError:
    return SettingsError(
        f"{what}; {setting('reference_scan')} needs the training code's own result for the scan.",
        "reference_scan",
    )


def _along(volume: Volume, scan: Volume) -> Volume:
    """Return a volume with the order and directions of a scan's axes."""
    codes = "".join(orientations.aff2axcodes(scan.affine))
    turned = orientation(volume.affine, codes)
    back = np.zeros((4, 4))
    back[3, 3] = 1
    for axis, (source, flip) in enumerate(zip(turned.order, turned.flips, strict=True)):
        back[source, axis] = -1 if flip else 1
        back[source, 3] = volume.shape[source] - 1 if flip else 0
    return replace(volume, voxels=turned.oriented(volume.voxels), affine=volume.affine @ back)


class _Search:
    """Changes of a model, compared with the training code's result until a time has passed."""

    def __init__(
        self, model: Model, volumes: Sequence[Volume], wanted: _Wanted, end: float
    ) -> None:
        self._model, self._volumes, self._wanted, self._end = model, volumes, wanted, end

    def translated(self, card: ModelCard) -> TranslatedScan:
        """Return the result with a card. Raises EngineError and PipelineError."""
        model, volumes = self._with(card)
        return translated(model, volumes, planned(model, volumes))

    def _with(self, card: ModelCard) -> tuple[Model, list[Volume]]:
        """Return the model with another card, and the scans in the order of its channels."""
        names = self._model.card.input_channels
        volumes = [self._volumes[names.index(name)] for name in card.input_channels]
        return replace(self._model, card=card), volumes

    def explained(
        self, made: TranslatedScan, before: ScanValues | None, on_change: OnChange
    ) -> Mismatch:
        """Return the single changes that explain a difference.

        made: the whole result. before: its difference; None for other extents.
        """
        wanted, card = self._wanted, self._model.card
        mismatch = Mismatch(
            difference=inf if before is None else float(np.abs(before).max()) / wanted.range,
            allowed=wanted.allowed / wanted.range,
        )
        if before is None:
            extents = made.prepared.plan.layout.extents
            mismatch = replace(mismatch, extents=(extents, wanted.grid(card.axes)))
        elif mirrored := self._mirrored(before):
            return replace(mismatch, mirrored=mirrored)
        around = self._place(before, made)
        is_whole = made.prepared.plan.inference == "volume"
        there = mismatch.extents[1] if mismatch.extents else None
        changes = [*single_changes(card, is_whole=is_whole, grid=there)]
        changes += self._linear_map(before)
        hopeful, tried = list[tuple[float, SingleChange]](), 0
        for change in changes:
            if perf_counter() > self._end:
                break
            on_change(tried, len(changes))
            tried += 1
            error = self._lowered(change.card, before, around)
            if error is not None:
                hopeful.append((error, change))
        hopeful.sort(key=lambda one: one[0])
        named = [
            change
            for _, change in hopeful[:_MOST_CONFIRMED]
            if self._lowered(change.card, before, None) is not None
        ]
        return replace(mismatch, named=tuple(named), tried=tried, count=len(changes))

    def _lowered(
        self, card: ModelCard, before: ScanValues | None, around: ScanPlace | None
    ) -> float | None:
        """Return the error of a card if it is a tenth of that before, and no voxel is beyond the
        limit; None if not.
        """
        model, volumes = self._with(card)
        try:
            plan = planned(model, volumes)
            if not self._wanted.is_on_scan and plan.layout.extents != self._wanted.grid(card.axes):
                return None
            after = self._wanted.difference(translated(model, volumes, plan, around))
        except (EngineError, PipelineError, ValueError):  # this card does not fit the scan
            return None
        if after is None:
            return None
        known = np.isfinite(after)
        if not known.any() or np.abs(after[known]).max() > self._wanted.allowed:
            return None
        error = _root_mean_square(after[known])
        is_lower = before is None or _TENFOLD * error <= _root_mean_square(before[known])
        return error if is_lower else None

    def _mirrored(self, before: ScanValues) -> tuple[int, ...]:
        """Return the axes along which the training code's result is a mirror image."""
        wanted = self._wanted.values
        made = before + wanted
        for flips in product((False, True), repeat=3):
            axes = tuple(axis for axis, flip in enumerate(flips) if flip)
            apart = np.abs(made - np.flip(wanted, tuple(1 + axis for axis in axes)))
            if axes and apart.max() <= self._wanted.allowed:
                return axes
        return ()

    def _linear_map(self, before: ScanValues | None) -> list[SingleChange]:
        """Return the window of results that fits best, if there can be one."""
        card = self._model.card
        match card.intensity_out:
            case Window(low, high):
                ends = low, high
            case Identity():
                ends = (0.0 if card.output_range == "0..1" else -1.0), 1.0
            case _:
                return []
        if before is None or len(before) > 1:
            return []
        wanted = self._wanted.values.ravel().astype(np.float64)
        slope, start = np.polyfit(wanted + before.ravel(), wanted, 1)
        low, high = (float(f"{slope * end + start:.6g}") for end in ends)
        window = replace(card, intensity_out=Window(low, high))
        return [SingleChange("intensity_out", window)] if low < high else []

    def _place(self, before: ScanValues | None, made: TranslatedScan) -> ScanPlace:
        """Return the place of the scan with the largest difference; its middle if none is known."""
        if before is None:
            return (0.5, 0.5, 0.5)
        at = np.unravel_index(int(np.abs(before).max(axis=0).argmax()), before.shape[1:])
        extents = before.shape[1:]
        shares = [(index + 0.5) / extent for index, extent in zip(at, extents, strict=True)]
        if self._wanted.is_on_scan:
            return triple(map(float, shares))
        plan = made.prepared.plan
        here, there = orientation(self._wanted.affine, made.axes), plan.orientation
        found = [0.5, 0.5, 0.5]
        for axis in range(3):
            share = shares[here.order[axis]]
            share = 1 - share if here.flips[axis] else share
            if window := plan.window:
                at = share * window.extents[axis] - window.before[axis] + window.inside[axis][0]
                share = min(max(at / plan.grid[axis], 0), 1)
            found[there.order[axis]] = float(1 - share if there.flips[axis] else share)
        return triple(found)


def _root_mean_square(values: ScanValues) -> float:
    return sqrt(float(np.mean(np.square(values, dtype=np.float64))))
