"""A whole scan through a model in fp32 on the CPU, or the patches around one place of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...engine.cpu.session import open_cpu_generator
from ...engine.cpu.slab_generator import open_cpu_volume_generator
from ...engine.model.model_file import Model
from ...engine.network.layers import Triple, triple
from ...engine.scaling import Stored
from ...io.volume import Volume
from ..decisions import with_inference
from ..host.memory import available_memory
from ..settings import ResolvedOptions, TranslateOptions
from ..stopwatch import Stopwatch
from ..study.finish import Canvas, canvas, finish
from ..study.inference import SlidingWindow, translate_array, translate_at_once
from ..study.patches import UNFLIPPED, Box, PatchLayout
from ..study.plan import StudyPlan
from ..study.prepare import Prepared
from ..study.translator import Scans, StudyTranslator

ScanValues: TypeAlias = npt.NDArray[np.float32]
ScanPlace: TypeAlias = tuple[float, float, float]
"""A place of a scan along i, j and k, as shares of its extents."""

_AROUND = 4
"""Voxels on each side of a place that are computed, along all axes but one."""

_MAPS_SHARE = 2
"""Share of the free memory for the feature maps of a whole volume: one part in this many."""


@dataclass(frozen=True, slots=True)
class TranslatedScan:
    """Result of a model before it is stored; NaN where only a part was computed.

    prepared: the scans in model space. output: of the network. axes: the model's. is_part: whether
    parts are missing.
    """

    prepared: Prepared
    output: Canvas
    axes: str
    is_part: bool

    def on_scan(self) -> ScanValues:
        """Return the result [C, i, j, k] on the scan's grid."""
        return np.stack([volume.values() for volume in finish(self.prepared, self.output)])

    def on_grid(self) -> ScanValues:
        """Return the result [C, D, H, W] on the model's grid."""
        each = zip(self.prepared.fit.outward, self.output.target.values, strict=True)
        return np.stack([fitted.values(network) for fitted, network in each]).astype(np.float32)


def resolved(model: Model) -> ResolvedOptions:
    """Return the options of a batch that states none, in fp32 and with float32 results."""
    asked = TranslateOptions(output_type="float32", precision="fp32")
    return with_inference(model, asked).resolved()


def planned(model: Model, volumes: Sequence[Volume]) -> StudyPlan:
    """Plan the scans of a study, in the order of the model's channels. Raises EngineError and
    PipelineError.
    """
    return StudyTranslator(model, resolved(model)).plan(Scans(tuple(volumes), ()), in_network=True)


def translated(
    model: Model, volumes: Sequence[Volume], plan: StudyPlan, around: ScanPlace | None = None
) -> TranslatedScan:
    """Translate the scans of a study as a batch does.

    plan: of `planned`. around: place of which only the patches are computed, with all others along
    one axis; None for all. Raises EngineError and PipelineError.
    """
    translator = StudyTranslator(model, resolved(model))
    study = translator.prepare(Scans(tuple(volumes), ()), plan, is_compared=False)
    prepared = study.prepared
    source, output, timer = prepared.network_input, canvas(prepared), Stopwatch()
    if plan.inference == "volume":
        memory = available_memory() // _MAPS_SHARE
        with open_cpu_volume_generator(model.network, memory) as whole:
            translate_at_once(source, output.target, whole, UNFLIPPED, timer, _ignore)
        return TranslatedScan(prepared, output, model.card.axes, is_part=False)
    layout, blend = plan.layout, translator.options.blend
    can_be_part = _can_be_part(layout, blend, is_cropped=bool(plan.crop))
    part = _part(prepared, around) if around and can_be_part else _Part.all_of(layout)
    window = SlidingWindow(part.layout, blend, model.card.padding)
    cut = replace(source, values=source.values[:, *part.cover])
    values = output.target.values
    target = Stored(values[:, *part.cover], output.target.scaling)
    with open_cpu_generator(model.network) as generator:
        translate_array(cut, target, generator, window, timer, _ignore)
    is_part = part.layout != layout
    if is_part:
        kept = values[:, *part.final].copy()
        values[...] = np.nan
        values[:, *part.final] = kept
    return TranslatedScan(prepared, output, model.card.axes, is_part)


def _ignore(_done: int) -> None:
    """Ignore progress."""


def _can_be_part(layout: PatchLayout, blend: str, *, is_cropped: bool) -> bool:
    """Return whether the patches of one place alone give the same values there: the ramps of a
    linear blend and padding depend on others, and in a cropped scan the place is elsewhere.
    """
    return blend != "linear" and layout.padded == layout.extents and not is_cropped


@dataclass(frozen=True, slots=True)
class _Part:
    """Some patches of a layout. layout: of them alone. cover: box of the model's grid that they
    cover. final: the part of it that no other patch touches.
    """

    layout: PatchLayout
    cover: Box
    final: Box

    @classmethod
    def all_of(cls, layout: PatchLayout) -> "_Part":
        whole: Box = triple(slice(0, extent) for extent in layout.extents)
        return cls(layout, whole, whole)


def _part(prepared: Prepared, around: ScanPlace) -> _Part:
    """Return the patches around a place, with all others along the axis that has the most."""
    turned, layout, window = prepared.plan.orientation, prepared.plan.layout, prepared.plan.window
    longest = max(range(3), key=lambda axis: len(layout.origins[axis]))
    origins, cover, final = list[tuple[int, ...]](), list[slice](), list[slice]()
    for axis, scan_axis in enumerate(turned.order):
        extent, patch, row = layout.extents[axis], layout.patch[axis], layout.origins[axis]
        share = 1 - around[scan_axis] if turned.flips[axis] else around[scan_axis]
        at = int(share * prepared.plan.grid[axis])
        if window:
            at += window.before[axis] - window.inside[axis][0]
        centre = min(max(at, 0), extent - 1)
        start, stop = max(centre - _AROUND, 0), min(centre + _AROUND + 1, extent)
        if axis == longest or len(row) == 1:
            start, stop = 0, extent
        chosen = [at for at in row if at < stop and at + patch > start]
        origins.append(tuple(at - chosen[0] for at in chosen))
        cover.append(slice(chosen[0], chosen[-1] + patch))
        final.append(slice(start, stop))
    extents: Triple = triple(edge.stop - edge.start for edge in cover)
    part = replace(layout, extents=extents, origins=triple(origins))
    return _Part(part, triple(cover), triple(final))
