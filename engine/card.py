"""The model card: all that a scan needs to know to pass through a network and come back.

A card travels as JSON in the metadata of the model file. Reading is strict: an unknown field, a
missing one or a value of the wrong kind is a ModelFileError that names it.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .architectures import Spec
from .graph import Triple

SmallVolumePadding: TypeAlias = Literal["edge", "reflect", "minimum"]
"""How a volume smaller than the patch grows: repeat the border, mirror, or lowest value."""


@dataclass(frozen=True, slots=True)
class Window:
    """Linear from [low, high] of the scan's own unit (HU, say) onto [-1, 1], clipped outside."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Linear from the study's own percentiles (0..100) onto [-1, 1], clipped outside."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class MinMax:
    """Linear from the study's own minimum and maximum onto [-1, 1]."""


@dataclass(frozen=True, slots=True)
class ZScore:
    """(value - mean) / standard deviation of the study, divided by `spread` deviations."""

    spread: float = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Values pass as they are."""


IntensityMap: TypeAlias = Window | Percentiles | MinMax | ZScore | Identity
"""Scan value to network value. As an output map its inverse is applied; Percentiles, MinMax and
ZScore then use what was measured on the input study."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from.

    source: name of the checkpoint file. sha256: its hash. layout: the key naming that was matched.
    notes: what was said or assumed at import. licence: of the weights, empty where nobody said.
    """

    source: str
    sha256: str
    layout: str
    importer: str
    notes: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """One stored patch and what the training code made of it; both lie in the model file.

    made_by: "training code", or "cuda-cyclegan" when nobody supplied the former: then it only
    proves that the file computes today what it computed at import.
    """

    input_sha256: str
    output_sha256: str
    made_by: Literal["training code", "cuda-cyclegan"]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a network was trained for.

    source, target: contrasts in words ("T1", "CT"); the direction is source to target.
    axes: anatomical direction of the patch's D, H and W axes, as in nibabel ("RAS", "SPL").
    spacing: millimetres along D, H and W; None takes every scan at its own spacing.
    patch: training patch (D, H, W); the default for tiling.
    """

    name: str
    architecture: Spec
    source: str
    target: str
    input_channels: tuple[str, ...]
    output_channels: tuple[str, ...]
    axes: str
    spacing: tuple[float, float, float] | None
    patch: Triple
    intensity_in: IntensityMap
    intensity_out: IntensityMap
    small_volume_padding: SmallVolumePadding
    provenance: Provenance
    reference: Reference
