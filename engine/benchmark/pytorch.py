"""Measures a network in PyTorch, in the ways of torch_modes, as this program measures itself."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any, TypeAlias

from ..options import Precision
from .measurement import Budget, Latency
from .pytorch_modes import Mode

torch: Any = import_module("torch")  # its types are incomplete

_FEWEST, _MOST = 5, 1000
_WARM_UP = 3
_TYPES: dict[Precision, str] = {"fp16": "float16", "bf16": "bfloat16"}

_Run: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ModeResult:
    """latency: of a batch. allocated, reserved: peak bytes of tensors, and of PyTorch's pool for
    them; None where it does not count them. output: of the first patches, float32 on the CPU.
    """

    latency: Latency
    allocated: int | None
    reserved: int | None
    output: Any


def measure(mode: Mode, module: Any, inputs: Sequence[Any], budget: Budget) -> ModeResult:
    """A module under a mode, on inputs taken in turn.

    module: float32 on the CPU, in eval mode; stays as it is. inputs: float32 tensors
    [N, C, D, H, W] on the device that is measured.
    """
    timed, is_cuda = (seconds_on_card, True) if inputs[0].is_cuda else (_on_host, False)
    before = torch.cuda.memory_allocated() if is_cuda else 0
    with running(mode, module, inputs[0]) as run:
        shaped = [_as_input(patches, mode) for patches in inputs]
        output = run(shaped[0]).float().cpu()
        allocated = reserved = None
        if is_cuda:
            held = before + sum(patches.nbytes for patches in shaped[1:])
            peak, pool = _peak(run, shaped[0])
            allocated, reserved = None if mode.runs_graph else peak - held, pool - held
        latency = Latency.of(timed([lambda p=patches: run(p) for patches in shaped], budget))
    return ModeResult(latency, allocated, reserved, output)


@contextmanager
def running(mode: Mode, module: Any, example: Any) -> Generator[_Run]:
    """The module under a mode on the example's device, warmed up; gives its memory back."""
    torch.backends.cudnn.benchmark = mode.autotune
    torch.backends.cudnn.allow_tf32 = mode.arithmetic == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = mode.arithmetic == "tf32"
    placed = _placed(module, mode, example.device)
    with torch.inference_mode():
        run: _Run = placed
        if mode.compile_mode is not None:
            run = torch.compile(placed, mode=mode.compile_mode, dynamic=False)
        shaped = _as_input(example, mode)
        for _ in range(_WARM_UP):
            run(shaped)
        yield _captured(run, shaped) if mode.graph else run
    import_module("torch._dynamo").reset()
    torch.cuda.empty_cache()


def _placed(module: Any, mode: Mode, device: Any) -> Any:
    placed = deepcopy(module).to(device)
    if mode.arithmetic in _TYPES:
        placed = placed.to(getattr(torch, _TYPES[mode.arithmetic]))
    if mode.channels_last:
        placed = placed.to(memory_format=torch.channels_last_3d)
    return placed.eval()


def _as_input(patches: Any, mode: Mode) -> Any:
    """Patches in the type and memory order that a mode takes."""
    dtype = getattr(torch, _TYPES.get(mode.arithmetic, "float32"))
    order = torch.channels_last_3d if mode.channels_last else torch.contiguous_format
    return patches.to(dtype, memory_format=order)


def _captured(run: _Run, example: Any) -> _Run:
    held = example.clone(memory_format=torch.preserve_format)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            run(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run(held)

    def replay(patches: Any) -> Any:
        held.copy_(patches)
        graph.replay()
        return result

    return replay


def _peak(run: _Run, patches: Any) -> tuple[int, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run(patches)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved()


def seconds_on_card(runs: Sequence[Callable[[], object]], budget: Budget) -> list[float]:
    """Seconds of each of many runs, in turn over the given ones, by events on the card."""

    def queued(count: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        marks[0].record()
        for index, mark in enumerate(marks[1:]):
            runs[index % len(runs)]()
            mark.record()
        torch.cuda.synchronize()
        return [marks[i].elapsed_time(marks[i + 1]) / 1e3 for i in range(count)]

    one = min(queued(len(runs) + 1))
    return queued(budget.runs(one, _FEWEST, _MOST))


def _on_host(runs: Sequence[Callable[[], object]], budget: Budget) -> list[float]:
    def timed(index: int) -> float:
        begin = perf_counter()
        runs[index % len(runs)]()
        return perf_counter() - begin

    one = timed(0)
    return [timed(index) for index in range(budget.runs(one, _FEWEST, _MOST))]
