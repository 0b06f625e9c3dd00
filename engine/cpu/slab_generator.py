"""Run the pieces of a network over a volume, slab by slab, in OpenVINO and ONNX Runtime."""

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cores import in_parallel, usable_cores
from ..errors import PrecisionOverflowError
from ..network.graph import (
    INPUT,
    Graph,
    Network,
    Node,
    TensorShape,
)
from ..network.graph_analysis import layer_flops
from ..network.layers import Downsample, FloatArray, GroupNorm, InstanceNorm
from ..patch_grid import Rows, Timing
from ..scaling import Stored
from .openvino_support import is_installed
from .session import onnxruntime, session, session_options
from .slabs import Piece, SlabPiece, SlabPlan, all_shapes, cut, filter_name, plan_slabs, slab_piece

if TYPE_CHECKING:
    from onnx import ModelProto

    from .openvino import OpenVino


_Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MapMoments:
    """Moments of C channels. count: voxels. mean: [C]. squares: [C], summed squared deviations."""

    count: int
    mean: _Doubles
    squares: _Doubles

    @classmethod
    def of(cls, slab: FloatArray) -> "MapMoments":
        """Return the moments of [C, D, H, W]."""
        moments = in_parallel(_moments, slab)
        mean, squares = np.array(moments).T
        return cls(prod(slab.shape[1:]), mean, squares)

    def merged(self, other: "MapMoments") -> "MapMoments":
        """Return the moments of both together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart**2 * (self.count * other.count / count)
        return MapMoments(count, mean, self.squares + other.squares + between)

    def by_groups(self, groups: int) -> "MapMoments":
        """Return the moments of each channel together with all those of its group."""
        size = len(self.mean) // groups
        mean, squares = self.mean.reshape(groups, size), self.squares.reshape(groups, size)
        one = MapMoments(self.count, mean[:, 0], squares[:, 0])
        for at in range(1, size):
            one = one.merged(MapMoments(self.count, mean[:, at], squares[:, at]))
        return MapMoments(one.count, np.repeat(one.mean, size), np.repeat(one.squares, size))


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """value * scale + shift by channel, [C, 1, 1, 1] each."""

    scale: FloatArray
    shift: FloatArray

    def __call__(self, slab: FloatArray) -> FloatArray:
        """Return [C, D, H, W] mapped, in new memory."""
        output = np.empty(slab.shape, np.float32)

        def fill(channel: int) -> None:
            np.multiply(slab[channel], self.scale[channel], out=output[channel])
            output[channel] += self.shift[channel]

        in_parallel(fill, range(len(slab)))
        return output


def normalisation(node: Node, moments: MapMoments, weights: Mapping[str, FloatArray]) -> ChannelMap:
    """Return the channel map of a norm for a map with these moments."""
    layer = node.layer
    assert isinstance(layer, InstanceNorm | GroupNorm)
    found = moments.by_groups(layer.groups) if isinstance(layer, GroupNorm) else moments
    scale = 1 / np.sqrt(found.squares / found.count + layer.epsilon)
    if layer.scale:
        scale = scale * weights[layer.scale]
    shift = -found.mean * scale
    if layer.shift:
        shift = shift + weights[layer.shift]
    return ChannelMap(_by_channel(scale), _by_channel(shift))


def _by_channel(values: _Doubles) -> FloatArray:
    return values.astype(np.float32).reshape(-1, 1, 1, 1)


def _moments(channel: FloatArray) -> tuple[float, float]:
    values = channel.astype(np.float64)
    mean = float(values.mean())
    values -= mean
    np.square(values, out=values)
    return mean, float(values.sum())


_LONG = 1 << 34
"""FLOP of a map from which OpenVINO computes it: compiling up to three slabs takes 0.1 s, as much
as it gains on so many.
"""


@contextmanager
def open_cpu_volume_generator(
    network: Network, memory: int, threads: int | None = None
) -> Generator["SlabGenerator"]:
    """Open a network for whole volumes. memory: bytes of maps and slabs in memory.

    Further maps go to temporary files. threads: by default all cores that this process may use.
    """
    threads = threads or usable_cores()
    words = f"CPU, {threads} threads, ONNX Runtime {onnxruntime().__version__}"
    if is_installed():
        words += f", OpenVINO {version('openvino')}"
    yield SlabGenerator(network, memory, threads, words)


class SlabGenerator:
    """A network that is run over a volume map by map. device: description of the device."""

    def __init__(self, network: Network, memory: int, threads: int, device: str) -> None:
        self.graph: Graph = network.graph
        self.device = device
        self._network = network
        self._memory = memory
        self._threads = threads

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        """Translate as in `VolumeGenerator`; float32 throughout."""
        d, h, w = source.values.shape[1:]
        plan = plan_slabs(self.graph, (d, h, w), self._memory)
        start = perf_counter()
        _Passage(self._network, plan, source, target, self._threads).run(on_share)
        return [Timing("compute", start, perf_counter())]


class _Passage:
    """One volume in flight. maps: outputs that are still to be read."""

    def __init__(
        self, network: Network, plan: SlabPlan, source: Stored, target: Stored, threads: int
    ) -> None:
        self._network, self._plan = network, plan
        self._source, self._target = source, target
        self._pieces = cut(network.graph)
        self._shapes = all_shapes(network.graph, self._pieces, plan.padded)
        self._work = layer_flops(network.graph, plan.padded)
        self._runs = _Runs(network, self._shapes, threads)
        self._maps = dict[str, FloatArray]()
        self._norms = dict[str, ChannelMap]()

    def run(self, on_share: Callable[[float], None]) -> None:
        """Compute all maps; the last one is the target. on_share: called with the share done."""
        whole = sum(self._work.get(piece.output, 0) + 1 for piece in self._pieces.pieces)
        last = self._pieces.last_readers()
        if INPUT in self._pieces.measured:
            self._measure_input()
        done = 0.0
        for number, piece in enumerate(self._pieces.pieces):
            own = (self._work.get(piece.output, 0) + 1) / whole
            self._make(piece, lambda part, begun=done, own=own: on_share(begun + part * own))
            done += own
            for name in [one for one in self._maps if last[one] <= number]:
                del self._maps[name]

    def _make(self, piece: Piece, on_part: Callable[[float], None]) -> None:
        shape = self._shapes[piece.output]
        is_last = piece is self._pieces.pieces[-1]
        output = None if is_last else self._allocate(piece.output, shape)
        moments: MapMoments | None = None
        for rows in self._plan.slabs(piece.output, shape.extents[0]):
            slab = self._slab(piece, rows)
            if output is None:
                self._put(slab, rows)
            else:
                output[:, rows.start : rows.stop] = slab
            if piece.output in self._pieces.measured:
                found = MapMoments.of(slab)
                moments = moments.merged(found) if moments else found
            on_part(rows.stop / shape.extents[0])
        if output is not None:
            self._maps[piece.output] = output
        self._record_moments(piece.output, moments)
        self._runs.forget()

    def _record_moments(self, name: str, moments: MapMoments | None) -> None:
        for norm, node in self._pieces.norms.items():
            if moments and node.inputs[0] == name:
                self._norms[norm] = normalisation(node, moments, self._network.weights)

    def _measure_input(self) -> None:
        moments: MapMoments | None = None
        for row in range(self._plan.padded[0]):
            found = MapMoments.of(self._input(Rows(row, row + 1)))
            moments = moments.merged(found) if moments else found
        self._record_moments(INPUT, moments)

    def _slab(self, piece: Piece, rows: Rows) -> FloatArray:
        slab = slab_piece(piece, self._shapes, rows)
        inputs = {name: self._rows(name, taken) for name, taken in slab.reads.items()}
        if not slab.nodes:
            return inputs[slab.output]
        return self._runs(slab, inputs, is_long=self._work.get(piece.output, 0) >= _LONG)

    def _rows(self, source: str, rows: Rows) -> FloatArray:
        """Return rows of a map or the input, normalised if the source is a norm."""
        name = self._pieces.map_of(source)
        taken = self._input(rows) if name == INPUT else self._maps[name][:, rows.start : rows.stop]
        norm = self._norms.get(source)
        return norm(taken) if norm else taken

    def _input(self, rows: Rows) -> FloatArray:
        """Return rows of the network's input volume, padded after its last voxels."""
        values = self._source.values
        depth = values.shape[1]
        start, stop = min(rows.start, depth - 1), min(rows.stop, depth)
        inside = self._source.scaling.forward(values[:, start:stop])
        beyond = [
            len(rows) - (stop - start),
            *(
                padded - edge
                for padded, edge in zip(self._plan.padded[1:], values.shape[2:], strict=True)
            ),
        ]
        return np.pad(inside, [(0, 0), *((0, more) for more in beyond)], mode="edge")

    def _put(self, slab: FloatArray, rows: Rows) -> None:
        values = self._target.values
        _, depth, height, width = values.shape
        seen = slab[:, : max(0, depth - rows.start), :height, :width]
        if not np.isfinite(seen).all():
            raise PrecisionOverflowError.of("fp32")
        for row in range(seen.shape[1]):
            self._target.store(seen[:, row], rows.start + row)

    def _allocate(self, name: str, shape: TensorShape) -> FloatArray:
        extents = shape.channels, *shape.extents
        if name not in self._plan.in_files:
            return np.empty(extents, np.float32)
        with tempfile.TemporaryFile(prefix="cuda-cyclegan-") as file:
            return np.memmap(file, np.float32, "w+", shape=extents)


class _Runs:
    """Compiled slabs of a piece; slabs in the same position relative to the borders share one."""

    def __init__(self, network: Network, shapes: dict[str, TensorShape], threads: int) -> None:
        filters = {
            filter_name(node): node.layer.weight(shapes[node.inputs[0]].channels)
            for node in network.graph.nodes
            if isinstance(node.layer, Downsample)
        }
        self._weights = {**network.weights, **filters}
        self._channels = {name: shape.channels for name, shape in shapes.items()}
        self._threads = threads
        self._open = dict[tuple[Any, ...], Callable[[dict[str, FloatArray]], FloatArray]]()

    def __call__(
        self, slab: SlabPiece, inputs: dict[str, FloatArray], *, is_long: bool
    ) -> FloatArray:
        """Return the rows [C, D, H, W] of a slab. is_long: whether OpenVINO is worth compiling."""
        feeds = {name: np.ascontiguousarray(rows)[None] for name, rows in inputs.items()}
        shapes = {name: array.shape for name, array in feeds.items()}
        key = slab.nodes, slab.output, *shapes.items()
        if key not in self._open:
            opened = self._in_openvino if is_long and is_installed() else self._in_onnxruntime
            self._open[key] = opened(slab, shapes)
        [output] = self._open[key](feeds)
        return output

    def forget(self) -> None:
        """Free the compiled slabs of a piece."""
        self._open.clear()

    @cached_property
    def _openvino(self) -> "OpenVino":
        from .openvino import OpenVino

        return OpenVino("fp32", self._threads)

    def _in_openvino(
        self, slab: SlabPiece, shapes: Mapping[str, tuple[int, ...]]
    ) -> Callable[[dict[str, FloatArray]], FloatArray]:
        return self._openvino.compiled(self._model(slab, by_phases=True), shapes)

    def _in_onnxruntime(
        self, slab: SlabPiece, _shapes: Mapping[str, tuple[int, ...]]
    ) -> Callable[[dict[str, FloatArray]], FloatArray]:
        running = session(self._model(slab), session_options(self._threads))
        return lambda feeds: running.run(None, feeds)[0]

    def _model(self, slab: SlabPiece, *, by_phases: bool = False) -> "ModelProto":
        from .onnx_model import nodes_to_onnx

        channels = dict(self._channels)
        for node in slab.nodes:
            channels.setdefault(node.name, channels[node.inputs[0]])
        return nodes_to_onnx(
            slab.nodes,
            channels,
            slab.reads,
            slab.output,
            self._weights,
            by_columns=True,
            by_phases=by_phases,
        )
