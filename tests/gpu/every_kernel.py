"""Every custom kernel on small shapes, without cuDNN: what compute-sanitizer is run on.

compute-sanitizer --tool memcheck python tests/gpu/every_kernel.py fp16
compute-sanitizer --tool racecheck python tests/gpu/every_kernel.py fp32
"""

import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict, replace

import numpy as np
from msgspec import structs
from support.gpu_networks import ODD_GRAPHS, ODD_PATCH, random_network
from support.network_features import FEATURES
from support.poisoned_memory import poison

from cuda_cyclegan.engine.compiler.lowered import Layout
from cuda_cyclegan.engine.compiler.program.fitting import Fitted
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.program.memory import plan_memory
from cuda_cyclegan.engine.compiler.steps import planned
from cuda_cyclegan.engine.cpu.session import open_cpu_generator
from cuda_cyclegan.engine.cuda.driver import Context, Stream
from cuda_cyclegan.engine.cuda.kernel_images import Kernels
from cuda_cyclegan.engine.cuda.patches.captured_program import open_program
from cuda_cyclegan.engine.cuda.patches.streamed_window import SharedProgram, open_window_buffers
from cuda_cyclegan.engine.cuda.tuning.tactics import CUSTOM_TACTIC
from cuda_cyclegan.engine.network.architectures import ResNetSpec, UNetSpec, build
from cuda_cyclegan.engine.patch_grid import PatchGrid, PatchWindow
from cuda_cyclegan.engine.scaling import VOXEL_TYPES, Scaling, Stored

LIMITS = {"fp16": 1e-2, "bf16": 8e-2, "fp32": 1e-5}
RESNET = ResNetSpec(1, 1, width=32, blocks=1)
GRAPHS = {
    "reflect": (build(RESNET), (12, 8, 16)),
    "zero": (build(structs.replace(RESNET, padding="zero", norm="instance_affine")), (8, 8, 8)),
    "nearest": (build(structs.replace(RESNET, upsampling="nearest", width=8)), (8, 8, 8)),
    "unet": (build(UNetSpec(1, 1, width=32, levels=3)), (16, 8, 24)),
    "trilinear": (build(structs.replace(RESNET, upsampling="trilinear", width=8)), (8, 8, 8)),
    **{name: (graph, ODD_PATCH) for name, graph in ODD_GRAPHS.items()},
    **{name: (build(spec), (16, 16, 24)) for name, spec in FEATURES.items()},
}


def main() -> None:
    precision = sys.argv[1]
    wanted = sys.argv[2:] or GRAPHS
    with ExitStack() as opened:
        context = opened.enter_context(Context(0))
        stream = opened.enter_context(Stream())
        kernels = opened.enter_context(Kernels(precision, context.properties, None))
        for name in wanted:
            for batch in (1, 2):
                check(name, batch, precision, kernels, stream)


def check(name: str, batch: int, precision: str, kernels: Kernels, stream: Stream) -> None:
    graph, patch = GRAPHS[name]
    network = random_network(graph, 0)
    has_matrix = precision in ("fp16", "bf16")
    layout = Layout(
        patch, batch, precision, 200_000, has_matrix, split_fp16=precision in ("fp32", "tf32")
    )
    lowered = lower(network, layout, kernels.gpu)
    plan = plan_memory(lowered, (graph.in_channels, graph.out_channels), {})
    own = {s.shape: CUSTOM_TACTIC for s in planned(lowered.steps)}
    shape = (batch, graph.in_channels, *patch)
    patches = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
    with open_cpu_generator(network) as reference:
        right = reference(patches)
    got = np.empty_like(right)
    constants = lowered.encoded_constants()
    with open_program(Fitted(lowered, plan, own), constants, kernels, stream) as program:
        poison(program)
        stream.upload(program.patches, patches.ctypes.data, patches.nbytes)
        program.launch()
        stream.download(got.ctypes.data, program.translated, got.nbytes)
        stream.wait()
        channels = graph.in_channels, graph.out_channels
        run_window(
            SharedProgram(program, kernels, stream, threading.Lock(), batch, channels), patch
        )
    error = np.linalg.norm(got - right) / np.linalg.norm(right)
    print(f"{precision} {name}, batch {batch}: relative error {error:.1e}", flush=True)
    assert error < LIMITS[precision]


def run_window(compiled: SharedProgram, patch: tuple[int, int, int]) -> None:
    """Two patches that overlap and are wider than their array."""
    extents = patch[0] + 3, patch[1], patch[2] - 2
    grid = PatchGrid(extents, patch, ((0, 3), (0,), (-1,)), (0, 1, 2))
    into, out_of = compiled.channels
    for name in VOXEL_TYPES:
        voxels = np.random.default_rng(2).uniform(0, 99, (into, *extents)).astype(name)
        before = [np.full((out_of, *extents), value, name) for value in (1, 2)]
        plan = replace(grid, voxel_bytes=voxels.itemsize)
        window = PatchWindow(**asdict(plan), weights=np.ones(patch, np.float32), padding="edge")
        scaling = Scaling(50, 50, clips=True, lowest=-1.0 if name == "int8" else 0.0)
        for target in before:
            with open_window_buffers(compiled) as buffers:
                placed = buffers.allocate(window, 1 << 30)
                ends = Stored(voxels, scaling), Stored(target, scaling)
                buffers.run(ends[0], window, ends[1], placed, lambda _: None)
        assert np.array_equal(*before), "voxels were left as they were"


main()
