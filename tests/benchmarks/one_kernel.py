"""Run one kernel on one shape: error, time, GB/s and share of its bound.

    PYTHONPATH=tests python tests/benchmarks/one_kernel.py KERNEL [--extents D H W] [--inputs C]

Needs a GPU and the packages of extra cuda12 or cuda13; run it from the root of the repository.

The layer is part of a small network, of which each step that launches the kernel is shown. The time
of a step is the median of runs by itself. Its bound is the longer of its arithmetic and its bytes,
at the rates of a large matrix product and copy on the same GPU. The error is that of the network's
result against fp32 on the CPU. The last line is the alternative: the time of the network's steps
where no layer takes the kernel, beside the time with it. Exits with status 1 if no step launches
the kernel on this GPU.

Kernels that no usual layer takes (convolve, normalise_voxels, pack, unpack, check, sliding_window)
are launched by themselves, on one shape or two, with random numbers; no error is shown. A new
kernel gets a shape in SHAPES, or launches in ALONE if cuDNN computes its layers on usual GPUs.
"""

import argparse
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
from support.gpu_networks import chain, random_network

from cuda_cyclegan.engine.benchmark.gpu import measure_ceilings
from cuda_cyclegan.engine.benchmark.layer_times import layer_times
from cuda_cyclegan.engine.benchmark.measurement import Ceilings, LayerTime
from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.compiler.kernels import checks
from cuda_cyclegan.engine.compiler.kernels.launch import (
    CLIPPED,
    OVERFLOW,
    Addresses,
    Launch,
    anywhere,
)
from cuda_cyclegan.engine.compiler.kernels.sliding_window import (
    CLIPPED_BYTES,
    RingLayout,
    blend,
    cut,
    ring_layout,
    store_voxels,
)
from cuda_cyclegan.engine.compiler.kernels.spec import KernelSpec
from cuda_cyclegan.engine.compiler.kernels.step_launches import launches
from cuda_cyclegan.engine.compiler.program import fusion
from cuda_cyclegan.engine.compiler.steps import (
    IDENTITY,
    ChannelNorm,
    Conv,
    ConvShape,
    Interleave,
    Pack,
    Pointwise,
    Step,
    Unpack,
)
from cuda_cyclegan.engine.compiler.tensors import PATCHES, TRANSLATED, Region, Tensor
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.cuda.driver import Context, Stream
from cuda_cyclegan.engine.cuda.kernel_images import Kernels
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions
from cuda_cyclegan.engine.cuda.patches.patch_generator import open_cuda_generator
from cuda_cyclegan.engine.cuda.tuning import tuner
from cuda_cyclegan.engine.cuda.tuning.bench import open_bench
from cuda_cyclegan.engine.cuda.tuning.cache import CUSTOM
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.graph_analysis import layer_flops
from cuda_cyclegan.engine.network.layers import (
    Conv3d,
    ConvTranspose3d,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Triple,
    triple,
)
from cuda_cyclegan.engine.options import Precision
from cuda_cyclegan.engine.patch_grid import PatchWindow
from cuda_cyclegan.engine.scaling import Scaling, Stored

ROUNDS = 20
ONE, TWO, THREE, FOUR = (1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer for a kernel.

    kernel: its edge. inputs, outputs: channels. extents: of the patch. stride: along each axis.
    transposed: whether it doubles extents. depthwise: whether each channel is convolved by itself.
    precision: of the arithmetic.
    """

    kernel: int
    inputs: int
    outputs: int
    extents: Triple = (128, 128, 128)
    stride: int = 1
    transposed: bool = False
    depthwise: bool = False
    precision: Precision = "fp16"


SHAPES = {
    "convolve": Shape(3, 128, 128, (32, 32, 32), precision="fp32"),
    "conv_transpose_to_cells": Shape(3, 64, 32, (128, 128, 128), 2, transposed=True),
    "conv_transpose_to_patches": Shape(4, 64, 1, (128, 128, 128), 2, transposed=True),
    "convolve_by_planes": Shape(3, 32, 32),
    "convolve_depthwise": Shape(3, 32, 32, (64, 64, 64), depthwise=True),
    "convolve_five_planes": Shape(5, 32, 32, (64, 64, 64)),
    "convolve_narrow": Shape(3, 32, 8),
    "convolve_patches": Shape(5, 1, 32),
    "convolve_patches_wgmma": Shape(7, 1, 32),
    "convolve_split_fp16": Shape(3, 256, 256, (32, 32, 32), precision="fp32"),
    "convolve_strided": Shape(3, 32, 64, stride=2),
    "convolve_strided_patches": Shape(4, 1, 32, stride=2),
    "convolve_to_patches": Shape(5, 96, 1, (64, 64, 64)),
    "convolve_to_patches_wgmma": Shape(7, 32, 1),
    "convolve_voxels": Shape(1, 32, 1),
    "normalise": Shape(3, 256, 256, (32, 32, 32)),
    "pointwise": Shape(3, 256, 256, (64, 64, 64)),
    "statistics": Shape(3, 64, 64),
}
"""Usual layers that take each kernel, by its .cu file; most are those of its measured line."""

LARGE: Triple = (128, 128, 128)


@dataclass(frozen=True, slots=True)
class Alone:
    """Launches that are timed by themselves.

    operation: in words. sizes: bytes of memory by name. launches: for addresses of that memory.
    moved: bytes read and written. flops: of the arithmetic. precision: of the kernels. halves: the
    memory that holds fp16; all other holds fp32.
    """

    operation: str
    sizes: Mapping[str, int]
    launches: Callable[[Addresses, GpuProperties], list[Launch]]
    moved: int
    flops: int = 0
    precision: Precision = "fp16"
    halves: frozenset[str] = frozenset()

    def numbers(self, name: str) -> bytes:
        """Return numbers of -1 to 1 for a block: among NaN, a kernel would only report NaN."""
        kind: npt.DTypeLike = np.float16 if name in self.halves else np.float32
        count = self.sizes[name] // np.dtype(kind).itemsize
        if name in (OVERFLOW, CLIPPED):
            return bytes(self.sizes[name])
        return np.random.default_rng(1).uniform(-1, 1, count).astype(kind).tobytes()


def _checks() -> Iterator[Alone]:
    tensor, numbers = Tensor("tensor", 1, LARGE, 32, "fp16"), checks.NOISE.source
    sizes = {"tensor": tensor.bytes, "sum": 8}
    yield Alone(
        "fill 32 channels, 128x128x128",
        sizes,
        lambda at, gpu: [checks.fill_tensor(tensor, numbers, at("tensor"), gpu)],
        tensor.bytes,
        halves=frozenset(["tensor"]),
    )
    yield Alone(
        "fingerprint of 32 channels, 128x128x128",
        sizes,
        lambda at, gpu: [checks.fingerprint(at("tensor"), tensor.bytes, 2, at("sum"), gpu)],
        tensor.bytes,
        halves=frozenset(["tensor"]),
    )


def _convolution() -> Iterator[Alone]:
    extents, channels = (32, 32, 32), 128
    ends = extents, channels
    shape = ConvShape(1, *ends, *ends, THREE, ONE, ONE, ONE, "fp32")
    source, target = (Tensor(name, 1, *ends, "fp32") for name in ("source", "target"))
    step = Conv.of_shape("layer", shape, source, target, "weight")
    sizes = {"source": source.bytes, "target": target.bytes, "weight": 4 * shape.weights}
    yield _of_step("conv 3x3x3, 128 to 128, 32x32x32", step, sizes, 2 * shape.products, "fp32")


def _voxel_norm() -> Iterator[Alone]:
    for channels, edge in ((32, 64), (512, 8)):
        extents = edge, edge, edge
        source, target = (
            Tensor(name, 1, extents, channels, "fp16") for name in ("source", "target")
        )
        norm = ChannelNorm(channels, 1e-5, "scale", "shift")
        step = Pointwise(
            source.whole, target.whole, Region(0, 1), extents, (0, 0, 0), "zero", norm=norm
        )
        sizes = {item.name: item.bytes for item in (source, target)}
        sizes |= dict.fromkeys(("scale", "shift"), 4 * channels)
        yield _of_step(f"norm of voxels, {channels} channels, {edge}^3", step, sizes)


def _packing() -> Iterator[Alone]:
    target = Tensor("target", 1, (132, 128, 128), 32, "fp16")
    step = Pack(target, Region(0, 1), 1, LARGE, (-2, -2, -2), "zero", (5, 5))
    sizes = {PATCHES: 4 * prod(LARGE), "target": target.bytes}
    yield _of_step("pack 1 channel for 5x5x5, 128x128x128", step, sizes)


def _unpacking() -> Iterator[Alone]:
    source = Tensor("source", 1, LARGE, 8, "fp16")
    step = Unpack(source.whole, 0, 0, 1, 1, None, IDENTITY)
    sizes = {"source": source.bytes, TRANSLATED: 4 * prod(LARGE), OVERFLOW: 4}
    yield _of_step("unpack 8 channels to 1, 128x128x128", step, sizes)


def _interleaving() -> Iterator[Alone]:
    for channels in (1, 16):
        cells = Tensor("source", 1, (32, 32, 32), 64 * channels, "fp16")
        target = Tensor("target", 1, LARGE, max(8, channels), "fp16")
        step = Interleave(cells, target.whole, FOUR, (0, 0, 0), channels)
        sizes = {"source": cells.bytes, "target": target.bytes}
        yield _of_step(f"phases of {channels} channels, stride 4, to 128x128x128", step, sizes)


def _of_step(
    operation: str,
    step: Step,
    sizes: Mapping[str, int],
    flops: int = 0,
    precision: Precision = "fp16",
) -> Alone:
    moved = sum(sizes.values())
    halves = frozenset(["source", "target"] if precision == "fp16" else [])
    run = lambda at, gpu: launches(step, at, gpu)  # noqa: E731
    return Alone(operation, sizes, run, moved, flops, precision, halves)


def _window() -> Iterator[Alone]:
    """A patch out of an int16 volume, back into its rings, and the voxels that are stored."""
    extents, patch_voxels = (180, 256, 256), prod(LARGE)
    weights = np.ones(LARGE, np.float32)
    window = PatchWindow(
        extents,
        LARGE,
        ((0,), (0,), (0,)),
        (0, 1, 2),
        voxel_bytes=2,
        weights=weights,
        padding="edge",
    )

    def rings(base: int) -> RingLayout:
        return ring_layout(window, extents[0], (1, 1), base)

    voxels = Stored(np.zeros((1, *extents), np.int16), Scaling(50, 50))
    wide = Stored(voxels.values, Scaling(0, 65536))
    sizes = {
        "rings": rings(0).bytes,
        "patch": 4 * patch_voxels,
        "voxels": 2 * prod(extents),
        OVERFLOW: 4,
        CLIPPED: CLIPPED_BYTES,
    }
    yield Alone(
        "cut a patch of 128x128x128 out of int16",
        sizes,
        lambda at, _: [cut(window, rings(at("rings")), voxels, (0, 0, 0), at("patch"))],
        (2 + 4) * patch_voxels,
    )
    yield Alone(
        "blend a patch of 128x128x128",
        sizes,
        lambda at, _: [blend(window, rings(at("rings")), 1, (0, 0, 0), at("patch"), at(OVERFLOW))],
        (4 + 4 + 2 * (4 + 4)) * patch_voxels,
    )
    count = prod(extents)
    for target, clipped in ((voxels, "none"), (wide, "half of them")):
        yield Alone(
            f"store 256x256x180 voxels as int16, {clipped} clipped",
            sizes,
            lambda at, _, target=target: [
                store_voxels(
                    rings(at("rings")).mean, count, target, at("voxels"), at(OVERFLOW), at(CLIPPED)
                )
            ],
            (4 + 2) * count,
        )


ALONE = {
    "check": _checks,
    "convolve": _convolution,
    "interleave": _interleaving,
    "normalise_voxels": _voxel_norm,
    "pack": _packing,
    "sliding_window": _window,
    "unpack": _unpacking,
}
"""Launches of the kernels that no usual layer takes, by the .cu file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernel", choices=[*SHAPES, *ALONE])
    parser.add_argument("--extents", type=int, nargs=3, metavar=("D", "H", "W"))
    parser.add_argument("--edge", type=int, help="taps of the layer along each axis")
    parser.add_argument("--inputs", type=int, help="channels that the layer reads")
    parser.add_argument("--outputs", type=int, help="channels that it writes")
    parser.add_argument("--precision", choices=("fp16", "bf16", "tf32", "fp32"))
    parser.add_argument("--device", type=int, default=0)
    given = parser.parse_args()
    if given.kernel in ALONE:
        show_alone(given.kernel, given.device)
        if given.kernel not in SHAPES:
            return
    usual = SHAPES[given.kernel]
    shape = Shape(
        given.edge or usual.kernel,
        given.inputs or usual.inputs,
        given.outputs or (given.inputs if usual.depthwise else None) or usual.outputs,
        triple(given.extents or usual.extents),
        usual.stride,
        usual.transposed,
        usual.depthwise,
        given.precision or usual.precision,
    )
    network = random_network(graph_of(shape), 0)
    if given.kernel not in ALONE and not show(given.kernel, network, shape, given.device):
        raise SystemExit(f"No step of this layer launches {given.kernel} on this GPU.")
    with ExitStack() as only:
        if given.kernel == "convolve":  # which is the last resort
            only.enter_context(left_out("convolve_split_fp16"))
            only.enter_context(patch.object(tuner.Tuner, "_plans_to_time", lambda *_: []))
        taken = network_seconds(network, shape, given.device)
    with ExitStack() as only:
        if given.kernel == "convolve":
            only.enter_context(left_out("convolve_split_fp16"))
        only.enter_context(left_out(given.kernel))
        alternative = network_seconds(network, shape, given.device)
    print(f"all steps: {taken * 1e6:.1f} us, without the kernel {alternative * 1e6:.1f} us")


@contextmanager
def left_out(kernel: str) -> Generator[None]:
    """No layer takes the kernel within the block: another form of the layer or cuDNN has it."""
    is_allowed = KernelSpec.is_allowed
    with (
        patch.object(
            KernelSpec,
            "is_allowed",
            lambda spec, layout: spec.source != kernel and is_allowed(spec, layout),
        ),
        ExitStack() as more,
    ):
        if kernel in ("convolve", "convolve_depthwise"):
            more.enter_context(patch.object(tuner.Tuner, "_measure_custom", lambda *_: None))
        if kernel == "normalise":
            more.enter_context(patch.object(fusion, "_fits", lambda *_: False))
        if kernel == "convolve_split_fp16":
            refused = frozenset([kernel])
            more.enter_context(patch.object(tuner, "refused_kernels", lambda *_: refused))
        yield


def network_seconds(network: Network, shape: Shape, device: int) -> float:
    """Return the sum of the steps' median times."""
    options = CudaOptions(shape.precision, device)
    with open_cuda_generator(network, options, shape.extents) as generator:
        return sum(us for _, us in generator.step_times(ROUNDS)) / 1e6


def graph_of(shape: Shape) -> Graph:
    """Return a network with the layer, which is first or last if it has one channel there."""
    return chain(1, *((f"{number}", layer) for number, layer in enumerate(_layers(shape))))


def _layers(shape: Shape) -> Iterator[Layer]:
    is_halving = shape.stride == 2 and not shape.transposed
    if shape.inputs > 1:
        first = 1, shape.inputs
        if shape.transposed:
            yield Conv3d(*first, FOUR, "first.weight", stride=TWO, padding=ONE)
        else:
            yield Conv3d(*first, THREE, "first.weight", padding=ONE)
        yield from _activated(shape.inputs)
    kernel, border = triple([shape.kernel] * 3), triple([(shape.kernel - 1) // 2] * 3)
    ends, stride = (shape.inputs, shape.outputs), TWO if shape.stride == 2 else ONE
    if shape.transposed:
        more = triple([2 + 2 * border[0] - shape.kernel] * 3)
        yield ConvTranspose3d(*ends, kernel, "layer.weight", None, stride, border, more)
    else:
        groups = shape.inputs if shape.depthwise else 1
        yield Conv3d(*ends, kernel, "layer.weight", None, stride, border, groups=groups)
    if shape.outputs > 1:
        yield from _activated(shape.outputs)
        last = shape.outputs, 1
        if is_halving:
            yield ConvTranspose3d(*last, FOUR, "last.weight", stride=TWO, padding=ONE)
        else:
            yield Conv3d(*last, ONE, "last.weight")


def _activated(channels: int) -> tuple[Layer, Layer]:
    return InstanceNorm(channels), LeakyRelu(0.2)


def show(kernel: str, network: Network, shape: Shape, device: int) -> bool:
    """Print the network's error and each step that launches the kernel; return whether one does."""
    patches = np.random.default_rng(1).uniform(-1, 1, (1, 1, *shape.extents)).astype(np.float32)
    options = CudaOptions(shape.precision, device)
    with open_cuda_generator(network, options, shape.extents) as generator:
        got = generator(patches)
        timed = [(step, us / 1e6) for step, us in generator.step_times(ROUNDS)]
        rows = layer_times(timed, layer_flops(network.graph, shape.extents), generator.tactic)
        name = generator.device
    with Context(device) as context:
        gpu, room = context.properties, context.memory[0] * 9 // 10
    pairs = zip((step for step, _ in timed), rows, strict=True)
    found = [row for step, row in pairs if row.plan == CUSTOM and kernel in sources_of(step, gpu)]
    if not found:
        return False
    with open_cpu_generator(network) as reference:
        right = reference(patches)
    largest = np.abs(got - right).max()
    relative = np.linalg.norm(got - right) / np.linalg.norm(right)
    print(f"{name}, {shape.precision}; error at most {largest:.1e}, relative {relative:.1e}")
    ceilings = measure_ceilings(device, shape.precision, room)
    for row in found:
        print(line_of(row, ceilings))
    return True


def show_alone(kernel: str, device: int) -> None:
    """Print the time of each launch of a kernel, and its share of the bound."""
    for one in ALONE[kernel]():
        with Context(device) as context, Stream() as stream:
            room = context.memory[0] * 9 // 10
            with (
                Kernels(one.precision, context.properties, None) as kernels,
                open_bench(kernels, stream, one.sizes, room) as bench,
            ):
                for name in one.sizes:
                    bench.upload(name, one.numbers(name))
                found = one.launches(bench.at, context.properties)
                seconds = bench.time(lambda found=found: bench.launch(found)) / 1e6
            name = context.name
        ceilings = measure_ceilings(device, one.precision, room)
        row = LayerTime(kernel, one.operation, CUSTOM, seconds, one.flops, one.moved)
        print(f"{name}, {one.precision}; {line_of(row, ceilings)}")


def sources_of(step: Step, gpu: GpuProperties) -> set[str]:
    """Names of the .cu files that a step launches, if no plan of cuDNN computes it."""
    return {launch.source for launch in launches(step, anywhere, gpu)}


def line_of(row: LayerTime, ceilings: Ceilings | None) -> str:
    """A row with its rates, and the share of its bound."""
    moved = row.bytes or 0
    text = f"{row.operation}: {row.seconds * 1e6:.1f} us, {moved / row.seconds / 1e9:.0f} GB/s"
    if row.flops:
        text += f", {row.flops / row.seconds / 1e12:.1f} TFLOP/s"
    if ceilings is None:
        return text
    arithmetic, transfer = row.flops / ceilings.flops, moved / ceilings.bandwidth
    kind = "arithmetic" if arithmetic > transfer else "bytes"
    return f"{text}; {max(arithmetic, transfer) / row.seconds:.0%} of the bound by {kind}"


if __name__ == "__main__":
    main()
