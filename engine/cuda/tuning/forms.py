"""Forms of a layer that tuning compares: its custom kernel, and cuDNN with the passes it needs."""

from collections.abc import Mapping

from ...compiler.kernels.table import kernel_of
from ...compiler.lowered import LayerForm, Lowered
from ...compiler.program.alternatives import compared
from ...compiler.steps import Conv
from .cache import TuningCache

OWN_FORM: LayerForm = "own"

_COMPARED = 2
"""Raised when custom kernels become faster, or are compared otherwise, to compare them again."""


def form_key(step: Conv) -> str:
    """Return the cache key of the times of a layer in each of its forms."""
    return f"{kernel_of(step).cache_key(step)}, compared {_COMPARED}"


def faster_forms(lowered: Lowered, cache: TuningCache) -> Mapping[str, LayerForm]:
    """Return the forms that were faster than the custom kernel, by layer."""
    found: dict[str, LayerForm] = {}
    for step in compared(lowered):
        names = {one.plan for one in cache.get(form_key(step)).candidates[:1]}
        others = kernel_of(step).forms
        found.update((step.layer, form) for form in others if form in names)
    return found
