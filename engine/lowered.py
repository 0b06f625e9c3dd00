"""What a network is lowered for, and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from .graph import FloatArray, Triple
from .precision import Precision
from .steps import Step

TransposedForm: TypeAlias = Literal["gradient", "subpixel"]
"""A transposed convolution as a data gradient, or as a convolution to 8 sub-pixels."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of the work, and the choices that do not change its result beyond rounding.

    slab_bytes: bound of the tensors between the steps of an outermost layer, which goes through
    the depth in slabs. matrix_kernels: whether own kernels for the matrix units may be
    used. transposed: form of transposed convolutions by layer. halves: whether a float program does
    convolutions on fp16 halves where their input allows it (`halves.scales`).
    """

    patch: Triple
    batch: int
    precision: Precision
    slab_bytes: int = 112 << 20
    matrix_kernels: bool = False
    transposed: Mapping[str, TransposedForm] = field(default_factory=dict[str, TransposedForm])
    halves: bool = False


@dataclass(frozen=True, slots=True)
class Lowered:
    """Steps in order, and the float32 constants that they name.

    weights: the constants that the device stores in the layout's precision.
    """

    layout: Layout
    steps: tuple[Step, ...]
    constants: Mapping[str, FloatArray]
    weights: frozenset[str]
