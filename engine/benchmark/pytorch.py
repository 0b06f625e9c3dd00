"""The same network in PyTorch, and its time in each `Mode`, measured as this program measures
itself.

Only benchmarks import this module, and with it torch. torch.fx writes the module's forward, which
releases each tensor after its last use, as the training repositories' nested modules do.
"""

import operator
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from math import inf
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from ..network import layers
from ..network.graph import INPUT, Network, Node
from ..network.layers import FloatArray, PadMode, Triple
from ..options import Precision
from .alternatives import Mode
from .measurement import Budget, Latency

torch: Any = import_module("torch")  # its types are incomplete
fx: Any = import_module("torch.fx")

_EPSILON = 1e-5


def as_module(network: Network) -> Any:
    """Return a torch.nn.Module in eval mode, float32 on the CPU, on tensors [N, C, D, H, W]."""
    root, graph = torch.nn.Module(), fx.Graph()
    readers = Counter(name for node in network.graph.nodes for name in node.inputs)
    channels = network.graph.channels()
    values: dict[str, Any] = {INPUT: graph.placeholder("patches")}
    views = {INPUT}
    for node in network.graph.nodes:
        inputs = tuple(values[name] for name in node.inputs)
        match node.layer:
            case layers.Add():
                output = graph.call_function(operator.add, inputs)
            case layers.Concat():
                output = graph.call_function(torch.cat, (inputs, 1))
            case layers.Subtract():
                output = graph.call_function(operator.sub, inputs)
            case layers.Multiply():
                output = graph.call_function(operator.mul, inputs)
            case layers.Erf():
                output = graph.call_function(torch.erf, inputs)
            case layers.Exp():
                output = graph.call_function(torch.exp, inputs)
            case layers.Inverse(low, is_of_root):
                kept = graph.call_function(torch.clamp_min, (*inputs, low))
                inverse = torch.rsqrt if is_of_root else torch.reciprocal
                output = graph.call_function(inverse, (kept,))
            case layers.Crop() | layers.Channels() as piece:
                output = graph.call_function(operator.getitem, (*inputs, _place(piece)))
                views.add(node.name)
            case layers.Downsample() as layer:
                name = node.name.replace(".", "_")
                root.add_module(name, _downsample(layer, channels[node.name]))
                output = graph.call_module(name, inputs)
            case _:
                source = node.inputs[0]
                # As the repositories do, if no other layer reads what an activation overwrites.
                in_place = source not in views and readers[source] == 1
                name = node.name.replace(".", "_")
                root.add_module(name, _module(node, network, in_place=in_place))
                output = graph.call_module(name, inputs)
        values[node.name] = output
    graph.output(values[network.graph.output])
    return fx.GraphModule(root, graph).eval()


def _module(node: Node, network: Network, *, in_place: bool) -> Any:
    nn, weights = torch.nn, network.weights
    match node.layer:
        case layers.Conv3d() as conv:
            bias = conv.bias is not None
            sizes = (conv.stride, conv.padding, conv.dilation, conv.groups, bias)
            return _convolution(nn.Conv3d, conv, sizes, weights)
        case layers.ConvTranspose3d() as conv:
            bias = conv.bias is not None
            sizes = (conv.stride, conv.padding, conv.output_padding, conv.groups, bias)
            return _convolution(nn.ConvTranspose3d, conv, (*sizes, conv.dilation), weights)
        case layers.InstanceNorm(channels, scale, shift, epsilon):
            norm = nn.InstanceNorm3d(channels, epsilon, affine=bool(scale or shift))
            return _affine(norm, scale, shift, weights)
        case layers.GroupNorm(channels, groups, scale, shift, epsilon):
            norm = nn.GroupNorm(groups, channels, epsilon, affine=bool(scale or shift))
            return _affine(norm, scale, shift, weights)
        case layers.ChannelAffine(channels, scale, shift):
            norm = nn.BatchNorm3d(channels, _EPSILON)
            _set(norm.running_var, np.full(channels, 1 - _EPSILON, np.float32))
            _set(norm.weight, weights[scale])
            _set(norm.bias, weights[shift])
            return norm
        case layers.Relu():
            return nn.ReLU(in_place)
        case layers.LeakyRelu(slope):
            return nn.LeakyReLU(slope, in_place)
        case layers.Elu(alpha):
            return nn.ELU(alpha, in_place)
        case layers.PRelu(channels, slope):
            rectifier = nn.PReLU(channels)
            _set(rectifier.weight, weights[slope])
            return rectifier
        case layers.Softplus():
            return nn.Softplus()
        case layers.Clip(low, high):
            return nn.Hardtanh(-inf if low is None else low, inf if high is None else high)
        case layers.Pool() as pool:
            return _pooling(pool)
        case layers.Pad(mode, before, after):
            return _padding(mode, before, after)
        case layers.Upsample(mode, factor, align_corners):
            corners = align_corners if mode == "trilinear" else None
            return nn.Upsample(scale_factor=factor, mode=mode, align_corners=corners)
        case layers.Tanh():
            return nn.Tanh()
        case layers.Sigmoid():
            return nn.Sigmoid()
        case (
            layers.Add()
            | layers.Subtract()
            | layers.Multiply()
            | layers.Concat()
            | layers.Erf()
            | layers.Exp()
            | layers.Inverse()
            | layers.Crop()
            | layers.Channels()
            | layers.Downsample()
        ):
            raise TypeError(f"{node.name} is not a module of torch")


def _affine(norm: Any, scale: str | None, shift: str | None, weights: Any) -> Any:
    channels = norm.weight.shape if scale or shift else ()
    if scale or shift:
        _set(norm.weight, weights[scale] if scale else np.ones(channels, np.float32))
        _set(norm.bias, weights[shift] if shift else np.zeros(channels, np.float32))
    return norm


def _pooling(pool: layers.Pool) -> Any:
    """Return a pooling; PyTorch's own pads by at most half of its window."""
    nn, is_largest = torch.nn, pool.mode == "largest"
    padding = [min(edge, taps // 2) for edge, taps in zip(pool.padding, pool.kernel, strict=True)]
    sizes = pool.kernel, pool.stride, padding
    layer = (
        nn.MaxPool3d(*sizes)
        if is_largest
        else nn.AvgPool3d(*sizes, count_include_pad=pool.counts_padding)
    )
    more = [edge - own for edge, own in zip(pool.padding, padding, strict=True)]
    if not any(more):
        return layer
    ends = [edge for edge in reversed(more) for _ in range(2)]
    wide = nn.Sequential(nn.ConstantPad3d(ends, -inf if is_largest else 0.0), layer)
    if is_largest or pool.counts_padding:
        return wide

    class MeanInside(nn.Module):
        """Mean of the part of a window that lies in the tensor."""

        def forward(self, x: Any) -> Any:
            return wide(x) / wide(torch.ones_like(x))

    return MeanInside()


def _place(piece: layers.Crop | layers.Channels) -> tuple[slice, ...]:
    """Return the slices of a crop or a range of channels in [N, C, D, H, W]."""
    if isinstance(piece, layers.Channels):
        return slice(None), slice(piece.first, piece.first + piece.count)
    ends = zip(piece.before, piece.after, strict=True)
    return slice(None), slice(None), *(slice(low, -high or None) for low, high in ends)


def _downsample(layer: layers.Downsample, channels: int) -> Any:
    """Return padding followed by a depthwise convolution."""
    nn = torch.nn
    conv = nn.Conv3d(channels, channels, layer.taps, layer.factor, groups=channels, bias=False)
    _set(conv.weight, layer.weight(channels))
    return nn.Sequential(_padding(layer.mode, layer.before, layer.after), conv)


def _convolution(
    kind: Any, conv: layers.Conv3d | layers.ConvTranspose3d, sizes: tuple[Any, ...], weights: Any
) -> Any:
    channels = conv.in_channels, conv.out_channels
    module = kind(*channels, conv.kernel, *sizes)
    _set(module.weight, weights[conv.weight])
    if conv.bias is not None:
        _set(module.bias, weights[conv.bias])
    return module


def _padding(mode: PadMode, before: Triple, after: Triple) -> Any:
    nn = torch.nn
    edges = [
        edge
        for axis in reversed(range(3))  # torch counts the last axis first
        for edge in (before[axis], after[axis])
    ]
    match mode:
        case "reflect":
            return nn.ReflectionPad3d(edges)
        case "replicate":
            return nn.ReplicationPad3d(edges)
        case "zero":
            return nn.ConstantPad3d(edges, 0.0)
        case layers.Constant(value):
            return nn.ConstantPad3d(edges, value)


def _set(parameter: Any, array: FloatArray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.array(array)))  # copied, as some are read-only


_FEWEST, _MOST = 5, 1000
_WARM_UP = 3
_TYPES: dict[Precision, str] = {"fp16": "float16", "bf16": "bfloat16"}

_Run: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class PytorchResult:
    """Result of PyTorch in one mode.

    latency: of a batch. allocated, reserved: peak bytes of tensors, and of PyTorch's pool for them;
    None if PyTorch does not count them. output: of the first patches, float32 on the CPU.
    """

    latency: Latency
    allocated: int | None
    reserved: int | None
    output: Any


def measure(mode: Mode, module: Any, inputs: Sequence[Any], budget: Budget) -> PytorchResult:
    """Measure a module in a mode, cycling through the inputs.

    module: float32 on the CPU, in eval mode; not modified. inputs: float32 tensors
    [N, C, D, H, W] on the device that is measured.
    """
    timed, is_cuda = (seconds_on_gpu, True) if inputs[0].is_cuda else (_on_host, False)
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
    return PytorchResult(latency, allocated, reserved, output)


@contextmanager
def running(mode: Mode, module: Any, example: Any) -> Generator[_Run]:
    """Prepare and warm up a module in a mode, on the example's device; frees it at the end."""
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
    """Convert patches to the type and memory order of a mode."""
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


def seconds_on_gpu(runs: Sequence[Callable[[], object]], budget: Budget) -> list[float]:
    """Return the seconds of many runs, cycling through the given ones, by CUDA events."""

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
