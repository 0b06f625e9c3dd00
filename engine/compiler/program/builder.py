"""IR builder of a lowering: known values, in memory or not, and how to write one into memory."""

from dataclasses import dataclass, replace

import numpy as np

from ...network.graph import INPUT, Network
from ...network.layers import (
    ZEROS,
    Conv3d,
    ConvTranspose3d,
    FloatArray,
    InstanceNorm,
    Layer,
    Pad,
    Triple,
    added,
    negative,
    subtracted,
    triple,
)
from ..gpu_properties import GpuProperties
from ..lowered import Layout, Lowered
from ..steps import (
    IDENTITY,
    Activation,
    ChannelNorm,
    Combination,
    Pack,
    Pointwise,
    Sampling,
    Statistics,
    Step,
)
from ..tensors import (
    COUNTERS,
    NUMBER_BYTES,
    AffineTable,
    Region,
    Tensor,
    TensorView,
    stored_channels,
)
from ..weight_layout import PackedWeight
from .block_maps import BlockMaps
from .fusion import fused
from .joined_maps import without_copies
from .split_fp16 import CHANNELS, scales

_LARGEST_VOLUME = 1024
"""Edge of the largest volume for which bounds of values are guaranteed; beyond it a number may
overflow, which a run reports, if nearly all voxels of a feature map are alike.
"""


_FEW, _MULTIPLE = 32, 16
"""Stored channels up to which any whole vectors are taken, and of which more are a multiple: with
others cuDNN's convolutions of 16-bit numbers take 1.1 to 1.5 times as long, the slowest of them 4
times (H200, 2026-12-01). Maps that are joined have their filling between them, which costs less: a
dense network of 40 to 432 channels took 5.65 ms with it, and 5.95 without.
"""


@dataclass(frozen=True, slots=True)
class ValuePart:
    """after(activation(norm(source * factor + summand)) + residual); `after` only with a residual.

    combination: operation in place of the second +. is_biased_only: the table only adds a
    convolution's bias.
    """

    source: TensorView
    table: AffineTable | None = None
    activation: Activation = IDENTITY
    residual: TensorView | None = None
    is_biased_only: bool = False
    after: Activation = IDENTITY
    combination: Combination = "add"
    norm: ChannelNorm | None = None

    @property
    def is_bare(self) -> bool:
        """Whether the part is its source."""
        is_changed = self.table or self.norm or self.residual or self.activation != IDENTITY
        return not is_changed

    @property
    def is_linear(self) -> bool:
        """Whether the part is its source except for a bias."""
        return self.is_bare or self.is_biased_only

    @property
    def is_affine(self) -> bool:
        """Whether the part is its source, normalised by a table or not."""
        return replace(self, table=None).is_bare

    @property
    def is_fusible(self) -> bool:
        """Whether a step may compute the part as it reads it, as an ActivatedView."""
        is_added = self.residual is not None
        return self.activation.has_one_slope and not is_added and self.norm is None


@dataclass(frozen=True, slots=True)
class Value:
    """A node's tensor: parts one after another as channels, then sampling, then padding.

    slots: stored position of each channel. unpadded: the node that the padding was put around.
    extents: (D, H, W) after sampling and padding. pad: None without; below 0 where voxels are cut
    off. sampled_excess: of a sampled map of a volume, as `excess`.
    """

    parts: tuple[ValuePart, ...]
    slots: tuple[int, ...]
    extents: Triple
    sampling: Sampling | None = None
    pad: Pad | None = None
    unpadded: str | None = None
    sampled_excess: Triple = ZEROS

    @property
    def excess(self) -> Triple:
        """Voxels of a volume's map before padding that are past its grid; see `block_maps`."""
        return self.parts[0].source.tensor.excess if self.sampling is None else self.sampled_excess

    @property
    def is_elementwise(self) -> bool:
        """Whether neither sampling nor padding is pending."""
        return self.sampling is None and self.pad is None

    @property
    def is_simple(self) -> bool:
        """Whether one expression over voxels gives the value."""
        return len(self.parts) == 1 and self.is_elementwise

    @property
    def is_bare(self) -> bool:
        """Whether the value is in memory."""
        return self.is_simple and self.parts[0].is_bare

    @property
    def stored(self) -> int:
        """Stored channels."""
        return sum(part.source.channels for part in self.parts)

    @property
    def sampled_extents(self) -> Triple:
        """Extents before padding."""
        if self.pad is None:
            return self.extents
        return subtracted(self.extents, self.pad.before, self.pad.after)


def in_memory(view: TensorView, slots: tuple[int, ...]) -> Value:
    """Return the value of a view."""
    return Value((ValuePart(view),), slots, view.extents)


class ProgramBuilder:
    """Builder of steps and constants.

    readers: nodes that read each node's tensor. values: known state of that tensor. lanes: used
    channels of each tensor that maps of few channels may share.
    """

    def __init__(
        self, network: Network, layout: Layout, gpu: GpuProperties, maps: BlockMaps | None
    ) -> None:
        """maps: of the blocks, if the patches are blocks of one volume."""
        self.graph = network.graph
        self.readers = network.graph.readers()
        self.weights = network.weights
        self.layout = layout
        self.gpu = gpu
        self.excess: dict[str, Triple] = {}
        if maps is None:
            self.shapes = bounded = network.graph.shapes(layout.patch)
        else:
            self.shapes, self.excess = maps.shapes, maps.excess
            stride = maps.original.stride
            largest = triple(-(-_LARGEST_VOLUME // step) * step for step in stride)
            bounded = maps.original.shapes(largest)
        self.off_grid = frozenset(
            node.name
            for node in self.graph.nodes
            if any(any(self.excess_of(name)) for name in (node.name, *node.inputs))
        )
        layers = (node.layer for node in self.graph.nodes)
        self._has_groups = any(
            isinstance(layer, Conv3d | ConvTranspose3d) and layer.groups > 1 for layer in layers
        )
        self.values: dict[str, Value] = {}
        self.lanes: dict[str, int] = {}
        self.padded_inputs: dict[str, Pad | None] = {INPUT: None}
        self.scales = scales(network, bounded, layout.precision) if layout.split_fp16 else {}
        self.steps: list[Step] = []
        self.constants: dict[str, FloatArray] = {}
        self._packed: dict[str, PackedWeight] = {}
        self._tensors = 0

    def finished(self) -> Lowered:
        """Return the lowered network."""
        self.constant(COUNTERS, np.zeros(self._most_measured(), np.float32))
        steps = self.steps
        if not self.layout.in_blocks:
            steps = fused(without_copies(steps, self.constants), self.gpu)
        return Lowered(self.layout, self.gpu, tuple(steps), self.constants, self._packed)

    def _most_measured(self) -> int:
        """Return the most channels of a batch whose statistics are computed in one step."""
        views = [step.source for step in self.steps if isinstance(step, Statistics)]
        return max((view.tensor.batch * view.channels for view in views), default=1)

    def tensor(
        self,
        name: str,
        extents: Triple,
        channels: int,
        batch: int | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Return a new tensor; `channels` as stored; scale: that of split fp16."""
        self._tensors += 1
        excess = self.excess_of(name)
        name = f"{self._tensors}.{name}"
        batch = self.layout.batch if batch is None else batch
        return Tensor(name, batch, extents, channels, self.layout.precision, scale, excess)

    def excess_of(self, name: str) -> Triple:
        """Return the voxels of a node's map past the grid of a volume's blocks."""
        return self.excess.get(name, ZEROS)

    def stored(self, channels: int) -> int:
        """Return the number of channels as stored; those of groups stay whole."""
        return self._in_pairs(stored_channels(channels, self.layout.precision))

    def written(self, value: Value) -> int:
        """Return the number of stored channels of a value once it is in memory."""
        return value.stored if len(value.parts) == 1 else self._in_pairs(value.stored)

    def _in_pairs(self, stored: int) -> int:
        is_taken = stored <= _FEW or NUMBER_BYTES[self.layout.precision] > 2
        return stored if is_taken or self._has_groups else -(-stored // _MULTIPLE) * _MULTIPLE

    def matrix_channels(self, channels: int) -> int:
        """Return the stored channels of taps as channels: whole 64-byte rows if more than one."""
        row = 64 // NUMBER_BYTES[self.layout.precision]
        return -(-channels // row) * row if channels > row else self.stored(channels)

    def by_slot(self, key: str, value: Value) -> FloatArray:
        """Return a weight of [C] in the stored order of a value's channels."""
        filled = np.zeros(value.stored, np.float32)
        filled[list(value.slots)] = self.weights[key]
        return filled

    def is_read_only_by(self, name: str, kind: type[Layer]) -> bool:
        """Return whether a node has readers and all are of one kind."""
        readers = self.readers[name]
        return bool(readers) and all(isinstance(node.layer, kind) for node in readers)

    def needed_bias(self, name: str, bias: str | None) -> str | None:
        """Return the bias of a convolution's node, or None where its mean is taken off anyway."""
        return None if self.is_read_only_by(name, InstanceNorm) else bias

    def constant(self, name: str, array: FloatArray) -> str:
        """Add a constant that the device stores as float32, and return its name."""
        self.constants[name] = np.ascontiguousarray(array, np.float32)
        return name

    def weight(self, name: str, packed: PackedWeight) -> str:
        """Add a constant that the device stores in the layout's precision, and return its name."""
        self._packed[name] = packed
        return name

    def fixed_table(self, name: str, factor: FloatArray, summand: FloatArray) -> AffineTable:
        """Return a table of the same numbers for all patches."""
        constant = self.constant(f"{name}.table", np.stack([factor, summand])[:, None])
        return AffineTable(constant, 1, len(factor))

    def measured_table(self, name: str, channels: int) -> AffineTable:
        """Return a table for computed statistics: per patch, or of the volume if patches are its
        blocks.
        """
        patches = 1 if self.layout.in_blocks else self.layout.batch
        return AffineTable(f"{name}.table", patches, channels)

    @property
    def all_patches(self) -> Region:
        """All patches of the batch."""
        return Region(0, self.layout.batch)

    def is_input(self, name: str) -> bool:
        """Return whether a node is the patches, padded or not, and not packed yet."""
        return name in self.padded_inputs

    def operand(self, name: str) -> Value:
        """Return the value of a node; the patches themselves are packed first."""
        if self.is_input(name):
            pad = self.padded_inputs.pop(name)
            channels = self.graph.in_channels
            tensor = self.tensor(name, self.shapes[name].extents, self.stored(channels))
            origin, mode = (negative(pad.before), pad.mode) if pad else ((0, 0, 0), "zero")
            patch = self.layout.patch
            self.steps.append(Pack(tensor, self.all_patches, channels, patch, origin, mode))
            self.values[name] = in_memory(tensor.whole, tuple(range(channels)))
        return self.values[name]

    def elementwise(self, name: str) -> Value:
        """Return the value without pending sampling and padding, which are executed if there are
        any.
        """
        if not self.operand(name).is_elementwise:
            self.write(name)
        return self.values[name]

    def view(self, name: str) -> tuple[Value, TensorView]:
        """Return the value in memory, possibly within a border or as space-to-depth."""
        if not self.operand(name).is_bare:
            self.write(name)
        value = self.values[name]
        return value, value.parts[0].source

    def dense(self, name: str) -> tuple[Value, Tensor]:
        """Return the value as a whole tensor."""
        value, view = self.view(name)
        tensor = view.tensor if view.is_whole else self.write(name)
        return value, tensor

    def shuffled(self, name: str, border: Triple) -> tuple[tuple[int, ...], Tensor]:
        """Write the value with a zero border as space-to-depth; return its slots and the tensor.

        All extents are even, and the border is omitted if the value has its own padding.
        """
        value = self.operand(name)
        pad = value.pad or Pad("zero", border, border)
        padded = added(value.sampled_extents, pad.before, pad.after)
        cells = triple(extent // 2 for extent in padded)
        channels = 8 * value.stored
        tensor = self.tensor(name, cells, channels, scale=self.scale(name))
        output = TensorView(tensor, padded, shuffled=True)
        self.write_part(value, output, self.all_patches, negative(pad.before))
        inner = TensorView(tensor, value.sampled_extents, pad.before, shuffled=True)
        unpadded = name if value.pad is None else value.unpadded
        if unpadded is not None and not self.values[unpadded].is_bare:
            self.values[unpadded] = in_memory(inner, value.slots)
        return value.slots, tensor

    def write(self, name: str) -> Tensor:
        """Write a value into a new tensor, which represents the value from then on."""
        value = self.values[name]
        channels = self.written(value)
        tensor = self.tensor(name, value.extents, channels, scale=self.scale(name))
        before = value.pad.before if value.pad else (0, 0, 0)
        self.write_part(value, tensor.whole, self.all_patches, negative(before))
        if channels > value.stored:
            self._clear(tensor, value.stored)
        self.values[name] = in_memory(tensor.whole, value.slots)
        unpadded = value.unpadded
        if unpadded is not None and not self.values[unpadded].is_bare:
            inner = TensorView(tensor, value.sampled_extents, before)
            self.values[unpadded] = in_memory(inner, value.slots)
        return tensor

    def _clear(self, tensor: Tensor, first: int) -> None:
        """Set the channels of a tensor from `first` on to 0, so that weights of 0 cancel them."""
        zero = Activation(curve="clip", low=0.0, high=0.0)
        source = replace(tensor.whole, lanes=(0, tensor.channels - first))
        output = replace(tensor.whole, lanes=(first, tensor.channels))
        step = Pointwise(
            source,
            output,
            self.all_patches,
            tensor.extents,
            ZEROS,
            "zero",
            activation=zero,
            excess=tensor.excess,
        )
        self.steps.append(step)

    def scale(self, name: str) -> float | None:
        """Return the scale of a value to be stored as split fp16; None if it is not."""
        value = self.values[name]
        fits = value.stored % CHANNELS == 0 and not any(p.source.channels % 8 for p in value.parts)
        return self.scales.get(name) if fits else None

    def write_part(self, value: Value, output: TensorView, patches: Region, origin: Triple) -> None:
        """Write the voxels of a value from `origin` on that fit into a view of all channels, or of
        more.
        """
        first = 0
        stored = output.tensor.channels // 8 if output.shuffled else output.tensor.channels
        for part in value.parts:
            end = first + part.source.channels
            step = Pointwise(
                part.source,
                output if end - first == stored else replace(output, lanes=(first, end)),
                patches,
                value.sampled_extents,
                origin,
                value.pad.mode if value.pad else "zero",
                part.table,
                part.activation,
                part.residual,
                value.sampling,
                part.after,
                part.combination,
                part.norm,
                excess=value.excess,
            )
            self.steps.append(step)
            first = end
