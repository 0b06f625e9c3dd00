"""The ways in which a PyTorch user can run a generator on a GPU, each as a call on the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Arithmetic: TypeAlias = Literal["fp16", "tf32", "fp32"]
Run: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run.

    compile_mode: of torch.compile; None runs eagerly. channels_last: memory order NDHWC.
    graph: captured once into a CUDA graph. autotune: cudnn.benchmark.
    """

    name: str
    arithmetic: Arithmetic
    channels_last: bool = False
    autotune: bool = True
    graph: bool = False
    compile_mode: str | None = None


EAGER_DEFAULT = Mode("eager default", "tf32", autotune=False)
EAGER_HALF = Mode("eager half", "fp16")
MODES = (
    EAGER_DEFAULT,
    EAGER_HALF,
    Mode("eager half channels_last_3d", "fp16", channels_last=True),
    Mode("eager half channels_last_3d graph", "fp16", channels_last=True, graph=True),
    Mode("compile half channels_last_3d", "fp16", True, compile_mode="default"),
    Mode("compile max-autotune half channels_last_3d", "fp16", True, compile_mode="max-autotune"),
    Mode("eager tf32 channels_last_3d", "tf32", channels_last=True),
    Mode("compile tf32", "tf32", compile_mode="default"),
    Mode("compile tf32 channels_last_3d", "tf32", True, compile_mode="default"),
    Mode("eager fp32", "fp32"),
    Mode("compile fp32", "fp32", compile_mode="default"),
    Mode("compile fp32 channels_last_3d", "fp32", True, compile_mode="default"),
)


@contextmanager
def running(mode: Mode, generator: nn.Module, example: Tensor) -> Iterator[Run]:
    """The generator on the GPU under a mode, warmed up; its memory is given back at the end.

    generator: float32 on the CPU, in eval mode; stays as it is.
    example: float32 [N, C, D, H, W] on the GPU, of the shape that will be run.
    """
    torch.backends.cudnn.benchmark = mode.autotune
    torch.backends.cudnn.allow_tf32 = mode.arithmetic == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = mode.arithmetic == "tf32"
    placed = _placed(generator, mode)
    with torch.inference_mode():
        run: Run = placed
        if mode.compile_mode is not None:
            run = torch.compile(placed, mode=mode.compile_mode, dynamic=False)
        shaped = as_input(example, mode)
        for _ in range(3):
            run(shaped)
        yield _captured(run, shaped) if mode.graph else run
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def as_input(patches: Tensor, mode: Mode) -> Tensor:
    """Patches in the type and memory order that a mode takes."""
    dtype = torch.float16 if mode.arithmetic == "fp16" else torch.float32
    order = torch.channels_last_3d if mode.channels_last else torch.contiguous_format
    return patches.to(dtype, memory_format=order)


def _placed(generator: nn.Module, mode: Mode) -> nn.Module:
    placed = deepcopy(generator).cuda()
    if mode.arithmetic == "fp16":
        placed = placed.half()
    if mode.channels_last:
        placed = placed.to(memory_format=torch.channels_last_3d)
    return placed.eval()


def _captured(run: Run, example: Tensor) -> Run:
    held = example.clone(memory_format=torch.preserve_format)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(held)

    def replay(patches: Tensor) -> Tensor:
        held.copy_(patches)
        graph.replay()
        return result

    return replay
