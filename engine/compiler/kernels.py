"""The table of kernels: which instances of each .cu file are compiled, and for which GPUs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..options import Precision
from .card_properties import WGMMA_CAPABILITY
from .convolution import Convolution
from .tensors import ELEMENTS

CELL_RINGS = {64: (6, 8), 128: (8, 5)}
"""Boxes and stages of weights in the shared memory of conv_transpose_to_cells.cu, by the channels
that it reads.
"""
CELL_OUTPUTS = (32, 64)
"""Output channels of its blocks; a layer has a multiple of the first."""

VOXEL_CHANNELS = (32, 64, 128)
"""Channels that conv_transpose_voxels.cu reads."""

PLANE_RINGS = {32: (6, 1), 64: (5, 2), 128: (5, 2)}
"""Boxes and chunks of weights in the shared memory of convolve_by_planes.cu, by the channels that
it reads.
"""
OUTPUT_TILES = {32: 256, 64: 128, 128: 64}
"""Voxels of a block of convolve.cu, by its output channels."""

SPLIT_TILES = {32: 128, 64: 128, 128: 64}
"""Voxels of a block of convolve_split_fp16.cu, by its output channels."""

WARP_GROUP_COLUMNS = (128, 96, 64)
"""Columns of a block of the wgmma kernels of the outer layers."""

LAST_STAGES = {32: 16, 64: 6}
"""Rows in the shared memory of convolve_to_patches_wgmma.cu, by the channels that it reads."""

MOST_SUMMED = 4
"""Output channels of convolve_voxels.cu at most."""

_FORMS = {"": "PLAIN", "_residual": "RESIDUAL", "_general": "GENERAL"}
_SAMPLINGS = {
    "": "<",
    "_nearest": "_sampled<NEAREST, ",
    "_largest": "_sampled<LARGEST, ",
    "_mean": "_sampled<MEAN, ",
    "_trilinear": "_blended<Between<false>, ",
    "_trilinear_corners": "_blended<Between<true>, ",
    "_binomial": "_blended<Filtered, ",
}
_HALF = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A .cu file.

    source: its name. instances: C++ name of each kernel with its template arguments, by the name
    that launches use; empty if the file's kernels are not templates. precisions: those that it has
    kernels for. needs_wgmma: whether it has them for compute capability 9.0 alone. in_blocks:
    whether patches may be blocks of a volume, for which it is compiled with -DIN_BLOCKS. fits:
    whether it does a convolution between tensors in memory, which plans of cuDNN may do too; None
    for a kernel of anything else.
    """

    source: str
    instances: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    precisions: tuple[Precision, ...] = tuple(ELEMENTS)
    needs_wgmma: bool = False
    in_blocks: bool = False
    fits: Callable[[Convolution], bool] | None = None

    def runs_on(self, precision: Precision, capability: tuple[int, int]) -> bool:
        """Return whether a GPU may launch the kernels in a precision."""
        is_on_chip = not self.needs_wgmma or capability == WGMMA_CAPABILITY
        return precision in self.precisions and is_on_chip

    def instances_for(self, precision: Precision, capability: tuple[int, int]) -> tuple[str, ...]:
        """Return the C++ names of all instances that a GPU may launch."""
        return (*self.instances.values(),) if self.runs_on(precision, capability) else ()


KERNELS: Mapping[str, KernelSpec] = {
    spec.source: spec
    for spec in (
        KernelSpec("check"),
        KernelSpec(
            "conv_transpose_to_cells",
            {
                f"conv_transpose_to_cells_{channels}_{outputs}": (
                    f"conv_transpose_to_cells<{channels}, {outputs}, {boxes}, {stages}>"
                )
                for channels, (boxes, stages) in CELL_RINGS.items()
                for outputs in CELL_OUTPUTS
            },
            _HALF,
            needs_wgmma=True,
            in_blocks=True,
        ),
        KernelSpec("conv_transpose_to_patches", precisions=_HALF),
        KernelSpec(
            "conv_transpose_voxels",
            {f"conv_transpose_voxels_{n}": f"conv_transpose_voxels<{n}>" for n in VOXEL_CHANNELS},
            _HALF,
        ),
        KernelSpec(
            "convolve_split_fp16",
            {
                f"convolve_split_fp16_{outputs}{border}": (
                    f"convolve_split_fp16<{has_border}, {voxels}, {outputs}>"
                )
                for border, has_border in (("", "false"), ("_border", "true"))
                for outputs, voxels in SPLIT_TILES.items()
            },
            ("tf32", "fp32"),
            fits=lambda shape: shape.split_fp16,
        ),
        KernelSpec(
            "convolve_depthwise",
            {
                "convolve_depthwise": "convolve_depthwise<false>",
                "gradient_depthwise": "convolve_depthwise<true>",
            },
            fits=lambda shape: shape.is_depthwise,
        ),
        KernelSpec(
            "convolve",
            {
                f"{name}_{outputs}": f"convolve<{voxels}, {outputs}, {is_gradient}>"
                for name, is_gradient in (("convolve", "false"), ("gradient", "true"))
                for outputs, voxels in OUTPUT_TILES.items()
            },
            fits=lambda _: True,
        ),
        KernelSpec(
            "convolve_by_planes",
            {
                f"convolve_by_planes_{channels}": (
                    f"convolve_by_planes<{channels // 32}, {boxes}, {held}>"
                )
                for channels, (boxes, held) in PLANE_RINGS.items()
            },
            _HALF,
            needs_wgmma=True,
        ),
        KernelSpec(
            "convolve_patches",
            {f"convolve_patches_{n}": f"convolve_patches<{n}>" for n in (16, 32)},
            _HALF,
            in_blocks=True,
        ),
        KernelSpec(
            "convolve_patches_wgmma",
            {
                f"convolve_patches_{kernel}_{outputs}_{columns}": (
                    f"convolve_patches_wgmma<{kernel}, {outputs}, {columns}, {blocks}>"
                )
                for kernel, outputs, columns, blocks in (
                    (3, 32, 64, 2),
                    *((7, outputs, n, 1) for outputs in (32, 64) for n in WARP_GROUP_COLUMNS),
                )
            },
            _HALF,
            needs_wgmma=True,
            in_blocks=True,
        ),
        KernelSpec("convolve_strided", precisions=_HALF, needs_wgmma=True, in_blocks=True),
        KernelSpec(
            "convolve_strided_patches",
            {f"convolve_strided_patches_{n}": f"convolve_strided_patches<{n}>" for n in (16, 32)},
            _HALF,
        ),
        KernelSpec(
            "convolve_to_patches",
            {
                "convolve_to_patches": "convolve_to_patches<false>",
                "convolve_to_patches_zero": "convolve_to_patches<true>",
            },
            _HALF,
            in_blocks=True,
        ),
        KernelSpec(
            "convolve_to_patches_wgmma",
            {
                f"convolve_to_patches_{channels}_{columns}": (
                    f"convolve_to_patches_wgmma<{channels}, {columns}, {stages}>"
                )
                for channels, stages in LAST_STAGES.items()
                for columns in WARP_GROUP_COLUMNS
            },
            _HALF,
            needs_wgmma=True,
            in_blocks=True,
        ),
        KernelSpec(
            "convolve_voxels",
            {f"convolve_voxels_{n}": f"convolve_voxels<{n}>" for n in range(1, MOST_SUMMED + 1)},
        ),
        KernelSpec(
            "normalise",
            {
                f"normalise{suffix}{held}": f"normalise<{form}, {is_held}>"
                for held, is_held in (("", "false"), ("_held", "true"))
                for suffix, form in _FORMS.items()
            },
        ),
        KernelSpec("pack", in_blocks=True),
        KernelSpec(
            "pointwise",
            {
                f"pointwise{name}{suffix}": f"pointwise{template}{form}>"
                for name, template in _SAMPLINGS.items()
                for suffix, form in _FORMS.items()
            },
            in_blocks=True,
        ),
        KernelSpec("sliding_window"),
        KernelSpec("statistics", in_blocks=True),
        KernelSpec("unpack", in_blocks=True),
    )
}
"""By the names of the .cu files; of those that fit a convolution, the first is taken."""

TENSOR_CORE_KERNELS = frozenset(
    spec.source for spec in KERNELS.values() if spec.precisions == _HALF
)
"""Those of fp16 and bf16 alone, which a GPU with Tensor Cores may use where they are right."""


def own_kernel(shape: Convolution) -> KernelSpec:
    """Return the kernel for a convolution between tensors in memory."""
    return next(spec for spec in KERNELS.values() if spec.fits and spec.fits(shape))
