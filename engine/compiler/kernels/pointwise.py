"""Launches of passes over voxels, and how these are cut into blocks."""

from ctypes import Structure
from dataclasses import dataclass

from ...network.layers import Downsample, Pool, Triple, Upsample
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import IDENTITY, ChannelNorm, Pointwise, Sampling
from ..tensors import NUMBER_BYTES, TensorView
from .launch import (
    WARP,
    Addresses,
    Launch,
    activation_argument,
    address_of,
    block_shape,
    border_of,
    cpp,
    strides_of,
    table_addresses,
    vectors,
)
from .spec import KernelSpec

_ROW_BLOCKS = 32
"""Most blocks per multiprocessor over which the rows of a pass are distributed."""

_NARROW_BLOCK = 64
"""Fewest threads of a block."""

_LONGEST_RUN, _THREADS = 8, 1024
"""Most voxels of a run, and the threads per multiprocessor that must remain with that length."""


@dataclass(frozen=True, slots=True)
class PassTile:
    """Split of a pass over voxels into blocks and threads, which changes no bit of its result.

    rows: of the target, one after another in a block. columns: of threads in a block, along a row.
    run: adjacent voxels of a row that a thread computes when it samples between voxels.
    """

    rows: int
    columns: int
    run: int


def pointwise(step: Pointwise, at: Addresses, gpu: GpuProperties) -> Launch:
    """Return the launch of a pass over voxels."""
    if step.norm is not None:
        return _normalise_voxels(step, at, gpu)
    view, target = step.source, step.target
    across, _ = block_shape(view.channels, target.precision)
    columns = -(-vectors(view.channels, target.precision) // across)
    depth, height, _ = step.output.extents
    tile, kernel = _tile(step, gpu), f"pointwise{_template(step.sampling)}{form_of(step)}>"
    grid = -(-depth * height // tile.rows), columns, step.patches.count
    block = across, tile.columns, 1
    return Launch("pointwise", kernel, grid, block, 0, pass_arguments(step, at, tile))


MOST_NORMALISED = 1024
"""Most channels over which each voxel is normalised."""

_NORM_BLOCKS = 8
"""Blocks per multiprocessor that the rows of a norm should fill."""


def _normalise_voxels(step: Pointwise, at: Addresses, gpu: GpuProperties) -> Launch:
    """Return the launch of a pass that normalises each voxel, by a warp's threads at most, over its
    channels.
    """
    tile = constants("normalise_voxels.cu")
    each = vectors(step.source.channels, step.target.precision)
    across = min(1 << (each - 1).bit_length(), WARP)
    depth, height, width = step.output.extents
    whole_warps = WARP // across
    columns = min(tile["THREADS"] // across, -(-width // whole_warps) * whole_warps)
    rows = -(-depth * height // (_NORM_BLOCKS * gpu.multiprocessors))
    form = "PLAIN" if form_of(step) == "PLAIN" else "GENERAL"
    return Launch(
        "normalise_voxels",
        f"normalise_voxels<{cpp(each > WARP)}, {form}>",
        (-(-depth * height // rows), 1, step.patches.count),
        (across, columns, 1),
        0,
        pass_arguments(step, at, PassTile(rows, columns, 1)),
    )


def form_of(step: Pointwise) -> str:
    """Return the form of a pass in pass.cuh, one of `FORMS`."""
    activation = step.activation
    has_one_slope = activation.curve == "linear" and activation.slopes is None
    if step.residual is None and has_one_slope:
        return "PLAIN"
    if step.residual is None and step.sampling is None:
        return "CURVED"
    is_plain_sum = step.after == IDENTITY and step.combination == "add"
    return "RESIDUAL" if step.residual and has_one_slope and is_plain_sum else "GENERAL"


def _template(sampling: Sampling | None) -> str:
    """Return the beginning of a kernel's C++ name after `pointwise`, by the sampling."""
    match sampling:
        case None:
            return "<"
        case Downsample():
            return "_blended<Filtered, "
        case Upsample("trilinear", align_corners=align_corners):
            return f"_blended<Between<{cpp(align_corners)}>, "
        case Pool(mode) | Upsample(mode):
            return f"_sampled<{mode.upper()}, "


def _factors(sampling: Sampling | None) -> Triple:
    match sampling:
        case Pool(stride=factors) | Upsample(factor=factors) | Downsample(factor=factors):
            return factors
        case None:
            return 1, 1, 1


def _window(sampling: Sampling | None) -> Structure:
    if not isinstance(sampling, Pool):
        return structure("pass.cuh", "Window")()
    return structure("pass.cuh", "Window")(
        kernel=sampling.kernel,
        padding=sampling.padding,
        counts_padding=sampling.counts_padding,
    )


def _filter(sampling: Sampling | None) -> Structure:
    if not isinstance(sampling, Downsample):
        return structure("pass.cuh", "Filter")()
    border, value = border_of(sampling.mode)
    row = tuple(sampling.filter.tolist())
    return structure("pass.cuh", "Filter")(
        taps=sampling.taps, border=border, border_value=value, row=row
    )


def _norm(norm: ChannelNorm | None, at: Addresses) -> Structure:
    if norm is None:
        return structure("pass.cuh", "ChannelNorm")()
    return structure("pass.cuh", "ChannelNorm")(
        scale=at(norm.scale), shift=at(norm.shift), channels=norm.channels, epsilon=norm.epsilon
    )


def pass_arguments(step: Pointwise, at: Addresses, tile: PassTile | None) -> Structure:
    """Return the arguments of a pass; tile: None for kernels that do not use it."""
    view, target, sampling = step.source, step.target, step.sampling
    size, first = NUMBER_BYTES[target.precision], step.patches.first
    factor, summand, stride = table_addresses(step.table, at)
    residual, residual_strides = None, structure("element.cuh", "Strides")()
    if step.residual is not None:
        residual_strides = strides_of(step.residual.tensor)
        residual = address_of(step.residual, at) + first * residual_strides.patch * size
    source_strides = strides_of(view.tensor)
    border, border_value = border_of(step.mode)
    return structure("pass.cuh", "Pointwise")(
        source=address_of(view, at) + first * source_strides.patch * size,
        residual=residual,
        target=address_of(step.output, at),
        factor=factor and factor + first * stride * 4,
        summand=summand and summand + first * stride * 4,
        source_strides=source_strides,
        residual_strides=residual_strides,
        target_strides=strides_of(target),
        channels=view.channels,
        table_stride=stride,
        table_channels=step.table.channels if step.table else view.channels,
        source_extents=view.extents,
        extents=step.extents,
        target_extents=step.output.extents,
        origin=step.origin,
        factors=_factors(sampling),
        border=border,
        rows=tile.rows if tile else 0,
        run=tile.run if tile else 0,
        shuffled=view.shuffled,
        source_origin=view.origin,
        target_cell=target.channels // 8 if step.output.shuffled else 0,
        source_unit=_unit(view),
        residual_unit=_unit(step.residual),
        target_scale=target.scale or 0.0,
        combination=constants("pass.cuh")[step.combination.upper()],
        activation=activation_argument(step.activation, at),
        after=activation_argument(step.after, at),
        border_value=border_value,
        filter=_filter(sampling),
        window=_window(sampling),
        norm=_norm(step.norm, at),
    )


def _unit(view: TensorView | None) -> float:
    """Return the inverse scale of a tensor of split fp16; 0 for any other."""
    return 1 / view.tensor.scale if view and view.tensor.scale else 0.0


def _tile(step: Pointwise, gpu: GpuProperties) -> PassTile:
    """Return the tile that is good on most GPUs."""
    depth, height, width = step.output.extents
    rows = -(-depth * height // (_ROW_BLOCKS * gpu.multiprocessors))
    across, _ = block_shape(step.source.channels, step.target.precision)
    if _is_blended(step):
        run = _run(step, gpu)
        return PassTile(rows, _columns(across, width, run), run)
    return PassTile(rows, _columns(across, width, constants("pointwise.cu")["VOXELS"]), 1)


def _is_blended(step: Pointwise) -> bool:
    """Return whether a voxel of the target lies between the voxels that it is computed from."""
    match step.sampling:
        case Downsample():
            return True
        case Upsample(mode):
            return mode == "trilinear"
        case _:
            return False


def _run(step: Pointwise, gpu: GpuProperties) -> int:
    depth, height, width = step.output.extents
    vectors_across = depth * height * step.patches.count
    vectors_across *= vectors(step.source.channels, step.target.precision)
    run = _LONGEST_RUN
    while run > 1 and vectors_across * -(-width // run) < _THREADS * gpu.multiprocessors:
        run //= 2
    return run


def _columns(across: int, width: int, each: int) -> int:
    """Return columns of a block such that whole blocks cover a row with little to spare."""
    turns, most = 1, constants("pointwise.cu")["MOST_THREADS"]
    while (columns := -(-width // (each * turns))) * across > most:
        turns += 1
    return max(columns, _NARROW_BLOCK // across)


SAMPLED_FORMS = "PLAIN", "RESIDUAL", "GENERAL"
FORMS = *SAMPLED_FORMS, "CURVED"
_SAMPLED = (
    *(f"_sampled<{mode}, " for mode in ("NEAREST", "LARGEST", "MEAN")),
    *(f"_blended<{taken}, " for taken in ("Between<false>", "Between<true>", "Filtered")),
)


KERNELS = (
    KernelSpec(
        "pointwise",
        (
            *(f"pointwise<{form}>" for form in FORMS),
            *(f"pointwise{sampled}{form}>" for sampled in _SAMPLED for form in SAMPLED_FORMS),
        ),
        in_blocks=True,
    ),
    KernelSpec(
        "normalise_voxels",
        tuple(
            f"normalise_voxels<{is_wide}, {form}>"
            for is_wide in ("false", "true")
            for form in ("PLAIN", "GENERAL")
        ),
        in_blocks=True,
    ),
)
