"""Launches of passes over voxels, and how these are cut into blocks."""

from ctypes import Structure
from dataclasses import dataclass

from ...network.layers import Downsample, Pool, Triple, Upsample
from ..gpu_properties import GpuProperties
from ..kernel_source import constants, structure
from ..steps import ChannelNorm, Pointwise, Sampling
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

    rows: of the target, one after another in a block; pairs of them where it interpolates. columns:
    of threads in a block, along a row. run: adjacent voxels of a row that a thread computes when it
    samples between voxels.
    """

    rows: int
    columns: int
    run: int


def pointwise(step: Pointwise, at: Addresses, gpu: GpuProperties) -> Launch:
    """Return the launch of a pass over voxels."""
    if step.norm is not None:
        return _normalise_voxels(step, at, gpu)
    source, kernel = _kernel(step)
    across, _ = block_shape(step.source.channels, step.target.precision)
    columns = -(-vectors(step.source.channels, step.target.precision) // across)
    tile = _tile(step, source, gpu)
    grid = -(-_rows(step) // tile.rows), columns, step.patches.count
    block = across, tile.columns, 1
    return Launch(source, kernel, grid, block, 0, pass_arguments(step, at, tile))


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
    has_slope = step.activation.has_one_slope
    if step.residual is None and has_slope:
        return "PLAIN"
    if step.residual is None and step.sampling is None:
        return "CURVED"
    is_sum = step.combination == "add" and step.after.has_one_slope
    return "RESIDUAL" if step.residual and has_slope and is_sum else "GENERAL"


def _kernel(step: Pointwise) -> tuple[str, str]:
    """Return the .cu file of a pass without a norm, and its kernel's C++ name."""
    form = form_of(step)
    match step.sampling:
        case None:
            return "pointwise", f"pointwise<{form}>"
        case Downsample():
            return "low_pass", f"low_pass<{form}>"
        case Upsample("trilinear", align_corners=align_corners):
            assert form == "PLAIN", step
            return "interpolate", f"interpolate<{cpp(align_corners)}>"
        case Pool(mode) | Upsample(mode):
            return "pointwise", f"pointwise_sampled<{mode.upper()}, {form}>"


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


def _tile(step: Pointwise, source: str, gpu: GpuProperties) -> PassTile:
    """Return the tile that is good on most GPUs. source: the .cu file of the pass."""
    rows = -(-_rows(step) // (_ROW_BLOCKS * gpu.multiprocessors))
    chosen = constants(f"{source}.cu")
    is_plain = source == "pointwise"
    run = 1 if is_plain else _run(step, gpu)
    columns = _columns(step, chosen["VOXELS"] if is_plain else run, chosen["MOST_THREADS"])
    return PassTile(rows, columns, run)


def _rows(step: Pointwise) -> int:
    """Return the rows of the target, or the pairs of planes and rows where a pass interpolates."""
    depth, height, _ = step.output.extents
    return (depth // 2 + 1) * (height // 2 + 1) if _is_interpolated(step) else depth * height


def _is_interpolated(step: Pointwise) -> bool:
    return isinstance(step.sampling, Upsample) and step.sampling.mode == "trilinear"


def _run(step: Pointwise, gpu: GpuProperties) -> int:
    """Return the longest run with which the GPU has enough threads."""
    fewest = 2 if _is_interpolated(step) else 1
    vectors_across = _rows(step) * step.patches.count
    vectors_across *= vectors(step.source.channels, step.target.precision)
    width, run = step.output.extents[2], _LONGEST_RUN
    while run > fewest and vectors_across * -(-width // run) < _THREADS * gpu.multiprocessors:
        run //= 2
    return run


def _columns(step: Pointwise, each: int, most: int) -> int:
    """Return columns of a block such that whole blocks cover a row with little to spare.

    each: voxels of a thread at a time. most: threads of a block.
    """
    across, _ = block_shape(step.source.channels, step.target.precision)
    # A run that interpolates may begin a voxel before the row.
    width = step.output.extents[2] + _is_interpolated(step)
    turns = 1
    while (columns := -(-width // (each * turns))) * across > most:
        turns += 1
    return max(columns, _NARROW_BLOCK // across)


SAMPLED_FORMS = "PLAIN", "RESIDUAL", "GENERAL"
FORMS = *SAMPLED_FORMS, "CURVED"
_MODES = "NEAREST", "LARGEST", "MEAN"


KERNELS = (
    KernelSpec(
        "pointwise",
        (
            *(f"pointwise<{form}>" for form in FORMS),
            *(f"pointwise_sampled<{mode}, {form}>" for mode in _MODES for form in SAMPLED_FORMS),
        ),
        in_blocks=True,
    ),
    KernelSpec("interpolate", ("interpolate<false>", "interpolate<true>"), in_blocks=True),
    KernelSpec("low_pass", tuple(f"low_pass<{form}>" for form in SAMPLED_FORMS), in_blocks=True),
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
