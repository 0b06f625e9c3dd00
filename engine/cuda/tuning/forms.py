"""Forms of a layer that tuning compares: its custom kernel, and cuDNN with the passes it needs."""

from collections.abc import Mapping

from ...compiler.lowered import LayerForm, Lowered
from ...compiler.lowering.forms import ComparedStep, names_of_other_forms
from ...compiler.steps import ConvolveByPlanes, ConvTransposeVoxels
from .cache import TuningCache

OWN_FORM: LayerForm = "own"

_COMPARED = 2
"""Raised when custom kernels become faster, or are compared otherwise, to compare them again."""


def form_key(step: ComparedStep) -> str:
    """Return the cache key of the times of a layer in each of its forms."""
    return f"{_described(step)}, compared {_COMPARED}"


def _described(step: ComparedStep) -> str:
    if isinstance(step, ConvolveByPlanes):
        target = step.target
        read = [
            (part.source.channels, part.source.shuffled, part.table is not None)
            for part in step.parts
        ]
        parts = target.batch, target.extents, target.channels, step.statistics is not None, read
        return f"convolution by planes, stride {step.stride}, {parts}"
    if isinstance(step, ConvTransposeVoxels):
        tensor, is_normalised = step.source.source.tensor, step.source.table is not None
        parts = tensor.batch, tensor.extents, tensor.channels, step.target.channels, is_normalised
        return f"transposed convolution of voxels {parts}"
    source, outputs = step.source, step.target.channels
    parts = source.batch, source.extents, source.channels, outputs, step.statistics is not None
    return f"transposed convolution {parts}"


def faster_forms(lowered: Lowered, cache: TuningCache) -> Mapping[str, LayerForm]:
    """Return the forms that were faster than the custom kernel, by layer."""
    found: dict[str, LayerForm] = {}
    for step in lowered.steps:
        if isinstance(step, ComparedStep):
            names = {one.plan for one in cache.get(form_key(step)).candidates[:1]}
            others = names_of_other_forms(step)
            found.update((step.layer, form) for form in others if form in names)
    return found
