"""Run the pieces of a network over a volume, slab by slab, in OpenVINO and ONNX Runtime."""

import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
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
from ..options import Precision
from ..patch_grid import Rows, Timing
from ..scaling import Stored
from .openvino_support import is_installed
from .session import onnxruntime, session, session_options
from .slab_pieces import Piece, SlabPiece, cut, filter_name, slab_piece
from .slabs import SlabPlan, all_shapes, plan_slabs

if TYPE_CHECKING:
    from onnx import ModelProto

    from .openvino import CompiledModel, OpenVino
    from .slab_model import SlabModel


_Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MapMoments:
    """Moments of C channels. count: voxels. mean: [C]. squares: [C], summed squared deviations."""

    count: int
    mean: _Doubles
    squares: _Doubles

    @classmethod
    def of(cls, slab: FloatArray) -> "MapMoments":
        """Return the moments of [D, H, W, C]."""
        first, *others = in_parallel(cls._of_row, slab)
        for other in others:
            first = first.merged(other)
        return first

    @classmethod
    def _of_row(cls, row: FloatArray) -> "MapMoments":
        """Return the moments of [H, W, C]. Sums are taken along H first, in long vectors."""
        height, width, channels = row.shape
        values = row.reshape(height, -1).astype(np.float64)
        count = height * width
        mean = values.sum(axis=0).reshape(width, channels).sum(axis=0) / count
        values -= np.tile(mean, width)
        np.square(values, out=values)
        return cls(count, mean, values.sum(axis=0).reshape(width, channels).sum(axis=0))

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
    """value * scale + shift by channel, [C] each."""

    scale: FloatArray
    shift: FloatArray


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
    return ChannelMap(scale.astype(np.float32), shift.astype(np.float32))


@contextmanager
def open_cpu_volume_generator(
    network: Network, memory: int, threads: int | None = None, precision: Precision = "fp32"
) -> Generator["SlabGenerator"]:
    """Open a network for whole volumes. memory: bytes of maps and slabs in memory.

    Further maps go to temporary files. threads: by default all cores that this process may use.
    precision: "fp32", or "bf16" for the convolutions that OpenVINO computes.
    """
    threads = threads or usable_cores()
    words = f"CPU, {threads} threads, ONNX Runtime {onnxruntime().__version__}"
    if is_installed():
        words += f", OpenVINO {version('openvino')}"
    with closing(SlabGenerator(network, memory, threads, precision, words)) as generator:
        yield generator


class SlabGenerator:
    """A network that is run over a volume map by map. device: description of the device."""

    def __init__(
        self, network: Network, memory: int, threads: int, precision: Precision, device: str
    ) -> None:
        self.graph: Graph = network.graph
        self.device = device
        self._network = network
        self._memory = memory
        self._models = _Models(network, threads, precision)

    def close(self) -> None:
        """Free the compiled slabs, even if this generator is still referenced."""
        self._models.close()

    def translate_volume(
        self, source: Stored, target: Stored, on_share: Callable[[float], None]
    ) -> list[Timing]:
        """Translate as in `VolumeGenerator`; float32 throughout."""
        d, h, w = source.values.shape[1:]
        plan = plan_slabs(self.graph, (d, h, w), self._memory)
        start = perf_counter()
        _Passage(self._network, plan, source, target, self._models).run(on_share)
        return [Timing("compute", start, perf_counter())]


class _Passage:
    """One volume in flight. maps: outputs that are still to be read."""

    def __init__(
        self, network: Network, plan: SlabPlan, source: Stored, target: Stored, models: "_Models"
    ) -> None:
        self._network, self._plan = network, plan
        self._source, self._target = source, target
        self._pieces = cut(network.graph)
        self._shapes = all_shapes(network.graph, self._pieces, plan.padded)
        self._work = layer_flops(network.graph, plan.padded)
        self._models = models
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
            slab = (
                np.empty((len(rows), *shape.extents[1:], shape.channels), np.float32)
                if output is None
                else output[rows.start : rows.stop]
            )
            self._compute(piece, rows, slab)
            if output is None:
                self._put(slab, rows)
            if piece.output in self._pieces.measured:
                found = MapMoments.of(slab)
                moments = moments.merged(found) if moments else found
            on_part(rows.stop / shape.extents[0])
        if output is not None:
            self._maps[piece.output] = output
        self._record_moments(piece.output, moments)
        self._models.rest(keeps=bool(self._plan.kept_bytes))

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

    def _compute(self, piece: Piece, rows: Rows, out: FloatArray) -> None:
        slab = slab_piece(piece, self._shapes, rows)
        inputs = {name: self._rows(name, taken) for name, taken in slab.reads.items()}
        norms = {name: self._norms[name] for name in inputs if name in self._norms}
        if slab.nodes or norms:
            is_long = piece.output in self._plan.long
            self._models(slab, inputs, norms, out, is_long=is_long)
        else:
            out[...] = inputs[slab.output]

    def _rows(self, source: str, rows: Rows) -> FloatArray:
        """Return rows of the map or the input that a source is, not yet normalised."""
        name = self._pieces.map_of(source)
        return self._input(rows) if name == INPUT else self._maps[name][rows.start : rows.stop]

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
        padded = np.pad(inside, [(0, 0), *((0, more) for more in beyond)], mode="edge")
        return np.ascontiguousarray(np.moveaxis(padded, 0, -1))

    def _put(self, slab: FloatArray, rows: Rows) -> None:
        values = self._target.values
        _, depth, height, width = values.shape
        seen = np.moveaxis(slab, -1, 0)[:, : max(0, depth - rows.start), :height, :width]
        if not np.isfinite(seen).all():
            raise PrecisionOverflowError.of(self._models.precision)
        for row in range(seen.shape[1]):
            self._target.store(seen[:, row], rows.start + row)

    def _allocate(self, name: str, shape: TensorShape) -> FloatArray:
        extents = *shape.extents, shape.channels
        if name not in self._plan.in_files:
            return np.empty(extents, np.float32)
        with tempfile.TemporaryFile(prefix="cuda-cyclegan-") as file:
            return np.memmap(file, np.float32, "w+", shape=extents)


@dataclass(frozen=True, slots=True)
class _OpenSlab:
    """A slab ready to run. run: compute it from all inputs, by name, into the second argument."""

    model: "SlabModel"
    run: Callable[[dict[str, FloatArray], FloatArray], None]


class _Models:
    """Slabs ready to run; equal ones share one in OpenVINO, which is kept between volumes.

    A session of ONNX Runtime has threads and memory of its own, and is made anew in 2 ms.
    """

    def __init__(self, network: Network, threads: int, precision: Precision) -> None:
        channels = network.graph.channels()
        filters = {
            filter_name(node): node.layer.weight(channels[node.inputs[0]])
            for node in network.graph.nodes
            if isinstance(node.layer, Downsample)
        }
        self._weights = {**network.weights, **filters}
        self.precision: Precision = precision
        self._threads = threads
        self._open = dict[tuple[Any, ...], _OpenSlab]()
        self._compiled = dict[bytes, "CompiledModel"]()

    def __call__(
        self,
        slab: SlabPiece,
        inputs: dict[str, FloatArray],
        norms: Mapping[str, ChannelMap],
        out: FloatArray,
        *,
        is_long: bool,
    ) -> None:
        """Compute the rows [D, H, W, C] of a slab. is_long: whether to compile it in OpenVINO."""
        shapes = {name: (1, *rows.shape) for name, rows in inputs.items()}
        key = slab.nodes, slab.output, *shapes.items()
        if key not in self._open:
            self._open[key] = self._opened(slab, shapes, norms, is_long=is_long)
        model = self._open[key].model
        feeds = {model.rows[name]: rows[None] for name, rows in inputs.items()}
        for name, norm in norms.items():
            feeds[model.scales[name]], feeds[model.shifts[name]] = norm.scale, norm.shift
        self._open[key].run({**feeds, **model.weights}, out[None])

    def rest(self, *, keeps: bool) -> None:
        """Free what a piece needs only while it is computed; keeps: not what is compiled."""
        self._open.clear()
        if not keeps:
            self._compiled.clear()
        for compiled in self._compiled.values():
            compiled.release()

    def close(self) -> None:
        """Free all compiled slabs."""
        self._open.clear()
        self._compiled.clear()

    def _opened(
        self,
        slab: SlabPiece,
        shapes: Mapping[str, tuple[int, ...]],
        norms: Mapping[str, ChannelMap],
        *,
        is_long: bool,
    ) -> _OpenSlab:
        from .slab_model import slab_model  # late: with ONNX

        in_openvino = is_long and is_installed()
        model = slab_model(slab, shapes, norms.keys(), self._weights, for_openvino=in_openvino)
        if not in_openvino:
            return _OpenSlab(model, self._in_onnxruntime(model.onnx))
        key = model.onnx.SerializeToString(deterministic=True)
        if key not in self._compiled:
            self._compiled[key] = self._openvino.compiled(model.onnx)
        return _OpenSlab(model, self._compiled[key].into)

    @cached_property
    def _openvino(self) -> "OpenVino":
        from .openvino import OpenVino

        return OpenVino(self.precision, self._threads)

    def _in_onnxruntime(
        self, model: "ModelProto"
    ) -> Callable[[dict[str, FloatArray], FloatArray], None]:
        running = session(model, session_options(self._threads))
        [output] = running.get_outputs()

        def run(feeds: dict[str, FloatArray], out: FloatArray) -> None:
            binding = running.io_binding()
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            place = out.ctypes.data
            binding.bind_output(output.name, "cpu", 0, np.float32, out.shape, place)
            running.run_with_iobinding(binding)

        return run
