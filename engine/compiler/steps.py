"""Steps of a program, each of which writes one tensor."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import Literal, TypeAlias, TypeGuard

from ..network.layers import (
    ONES,
    ZEROS,
    ActivationLayer,
    Clip,
    Downsample,
    Elu,
    Erf,
    Exp,
    Inverse,
    LeakyRelu,
    PadMode,
    Pool,
    Relu,
    Sigmoid,
    Softplus,
    Tanh,
    Triple,
    Upsample,
    added,
    multiplied,
    subtracted,
    triple,
)
from ..options import Precision
from .tensors import AffineTable, Operand, Region, Tensor, TensorView


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Shape of one convolution; everything that the choice of its tactic depends on.

    transposed: source and target change places, as in the gradient with respect to the input.
    before, after: zero padding of the forward convolution, on each side of each axis. split_fp16:
    source and weight are stored as fp16 pairs; such a convolution is neither transposed nor dilated
    and has no groups. groups: into which the channels fall, either of one channel or of whole
    vectors of both source and target. batch: patches. source_extents, target_extents, kernel,
    stride, dilation: along D, H and W. source_channels, target_channels: as stored, padded to whole
    vectors. precision: of source and weight.
    """

    batch: int
    source_extents: Triple
    source_channels: int
    target_extents: Triple
    target_channels: int
    kernel: Triple
    stride: Triple
    before: Triple
    after: Triple
    precision: Precision
    transposed: bool = False
    split_fp16: bool = False
    dilation: Triple = (1, 1, 1)
    groups: int = 1

    @property
    def summed_channels(self) -> int:
        """Source channels summed for each target channel."""
        return self.source_channels // self.groups

    @property
    def weights(self) -> int:
        """Number of elements of the weight."""
        return prod(self.kernel) * self.summed_channels * self.target_channels

    @property
    def products(self) -> int:
        """Number of products that are summed in one run."""
        return self.batch * prod(self.target_extents) * self.weights

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        return 1 < self.groups == self.source_channels == self.target_channels


Curve: TypeAlias = Literal[
    "linear",
    "tanh",
    "sigmoid",
    "elu",
    "softplus",
    "clip",
    "erf",
    "exp",
    "inverse",
    "inverse_root",
    "gelu",
    "swish",
    "hard_swish",
    "mish",
]


@dataclass(frozen=True, slots=True)
class Activation:
    """Activation of each number x. One that is not finite stays not finite in all of them.

    slope: below 0, linear is slope * x and elu slope * (exp(x) - 1); above, both are x. curve:
    tanh, sigmoid, softplus, erf and exp are those of x, clip keeps x from low to high, inverse is
    1 / x and inverse_root 1 / sqrt(x) of an x of at least low. gelu is x times the normal
    distribution function of x, swish x * sigmoid(slope * x + cube * x^3), hard_swish x times
    x / 6 + 1 / 2 kept from 0 to 1, and mish x * tanh(softplus(x)). slopes: name of a float32
    constant [stored channels] with linear's slope of each channel, in place of the one slope.
    """

    slope: float = 1.0
    curve: Curve = "linear"
    low: float = -inf
    high: float = inf
    slopes: str | None = None
    cube: float = 0.0

    @property
    def has_one_slope(self) -> bool:
        """Whether it is linear below 0, for all channels alike."""
        return self.curve == "linear" and self.slopes is None


IDENTITY = Activation()


def as_activation(layer: ActivationLayer) -> Activation:
    """Return the activation that a layer is in a step."""
    match layer:
        case Relu():
            return Activation(0.0)
        case LeakyRelu(slope):
            return Activation(slope)
        case Elu(alpha):
            return Activation(alpha, "elu")
        case Clip(low, high):
            ends = -inf if low is None else low, inf if high is None else high
            return Activation(curve="clip", low=ends[0], high=ends[1])
        case Inverse(low, root):
            return Activation(curve="inverse_root" if root else "inverse", low=low)
        case Softplus():
            return Activation(curve="softplus")
        case Tanh():
            return Activation(curve="tanh")
        case Sigmoid():
            return Activation(curve="sigmoid")
        case Erf():
            return Activation(curve="erf")
        case Exp():
            return Activation(curve="exp")


@dataclass(frozen=True, slots=True)
class ChannelNorm:
    """Normalisation of each voxel over its channels, with biased variance, then scale and shift.

    channels: those that count, from the first on; all others become 0. epsilon: added to the
    variance. scale, shift: names of float32 constants [stored channels], 0 for other channels.
    """

    channels: int
    epsilon: float
    scale: str
    shift: str


Combination: TypeAlias = Literal["add", "subtract", "multiply", "gate"]
"""Combination of two tensors of one shape, voxel by voxel.

With gate, the first channel of the second tensor multiplies all channels of the first.
"""


Sampling: TypeAlias = Upsample | Downsample | Pool
"""Operation of a pass over voxels between grids of different extents."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Data flow of a step, except for constants that it refers to by name.

    reads, writes: tensors and tables. measures: statistics that the step computes, whatever else it
    does. from_patches, to_patches: whether it reads the patches, and writes translated ones.
    """

    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    measures: "Statistics | None" = None
    from_patches: bool = False
    to_patches: bool = False

    @property
    def touches(self) -> tuple[Operand, ...]:
        """Operands that must be in memory while the step runs."""
        return *self.reads, *self.writes

    @property
    def touched_names(self) -> set[str]:
        """Names of the operands that must be in memory while the step runs."""
        return {item.name for item in self.touches}

    @property
    def written_names(self) -> set[str]:
        """Names of the step's outputs."""
        return {item.name for item in self.writes}

    @property
    def read_names(self) -> set[str]:
        """Names of the step's inputs."""
        return {item.name for item in self.reads}

    @property
    def tables(self) -> tuple[AffineTable, ...]:
        """Tables with which the step normalises its input."""
        return tuple(item for item in self.reads if isinstance(item, AffineTable))


@dataclass(frozen=True, slots=True)
class Reach:
    """Receptive window of a step for a block of its result.

    origin: first voxel, counted from the block's own first one. extents: how many.
    """

    origin: Triple
    extents: Triple


@dataclass(frozen=True)
class Pack:
    """Patches -> target, the kernel taps of H and W as channels (c, i, j), padded.

    Target voxel (d, h, w) holds at tap (i, j) the patch at
    (d, h * stride_h + i, w * stride_w + j) + origin, continued past its border by mode.

    patches: which of the batch. channels: of a patch. extents: (D, H, W) of a patch. taps: of the
    kernel along H and W. stride: along H and W.
    """

    target: Tensor
    patches: Region
    channels: int
    extents: Triple
    origin: Triple
    mode: PadMode
    taps: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)

    @property
    def reach(self) -> Reach:
        """Voxels of the patches that a target is computed from."""
        geometry = Geometry((1, *self.taps), (1, *self.stride))
        return Reach(self.origin, geometry.read_extents(self.target.extents))

    @cached_property
    def flow(self) -> Flow:
        return Flow(writes=(self.target,), from_patches=True)


@dataclass(frozen=True, slots=True)
class ActivatedView:
    """activation(source * factor + summand), which a step computes as it reads.

    table: None without a normalisation. activation: a linear one.
    """

    source: TensorView
    table: AffineTable | None = None
    activation: Activation = IDENTITY

    @property
    def reads(self) -> tuple[Operand, ...]:
        """Operands that steps write."""
        return self.source.tensor, *_if_any(self.table)


@dataclass(frozen=True, slots=True)
class PatchArray:
    """The input patches or the translated ones: float32 [N, C, D, H, W].

    channels, extents: of one patch. In a program for blocks of a volume, extents are a block's.
    """

    channels: int
    extents: Triple


@dataclass(frozen=True, slots=True)
class Geometry:
    """Movement of a convolution's kernel over its source.

    kernel, stride, dilation: along D, H and W. before, after: how far it reaches past the source,
    on each side of each axis. mode: how the source continues there. groups: into which the channels
    fall. transposed: source and target change places; all else is that of the forward convolution.
    """

    kernel: Triple
    stride: Triple = ONES
    before: Triple = ZEROS
    after: Triple = ZEROS
    dilation: Triple = ONES
    groups: int = 1
    transposed: bool = False
    mode: PadMode = "zero"

    @property
    def origin(self) -> Triple:
        """First voxel that is read for the target's first one; below 0 past the source."""
        return triple(-before for before in self.before)

    def read_extents(self, extents: Triple) -> Triple:
        """Return how many voxels are read for a target of these extents."""
        before_last = multiplied(subtracted(extents, ONES), self.stride)
        taps = multiplied(subtracted(self.kernel, ONES), self.dilation)
        return added(before_last, taps, ONES)


@dataclass(frozen=True)
class Conv:
    """A convolution, with the prologue of its operand and the epilogue of its result.

    layer: its name. kernel: the .cu file of the custom kernel that computes all of it; None if a
    cuDNN plan may. geometry: how it moves. inputs: one view, or two whose channels follow each
    other, or the patches. output: all of a tensor, some channels of a joined map by a kernel that
    `joins`, or the translated patches. weight: name of a constant, in the layout of the kernel's
    `pack`; without a kernel [K, kD, kH, kW, C / groups].
    bias: name of a float32 constant [C], and activation: of the result; both only of translated
    patches and of `convolve_narrow`. lanes: first and end of the channels of the output that the
    kernel writes, if other steps write the rest; None for all. statistics: of the output, if the
    kernel computes them too. around: of blocks of a volume, if the source includes a halo around
    each of them: its first voxel from the block's. region: of the target, None for all of it.
    scale: factor of the sums; it removes the powers of two of split fp16.
    """

    layer: str
    kernel: str | None
    geometry: Geometry
    inputs: tuple[ActivatedView, ...] | PatchArray
    output: TensorView | PatchArray
    weight: str
    bias: str | None = None
    activation: Activation = IDENTITY
    lanes: tuple[int, int] | None = None
    statistics: "Statistics | None" = None
    around: Triple | None = None
    region: Region | None = None
    scale: float = 1.0

    @classmethod
    def of_shape(
        cls, layer: str, shape: ConvShape, source: Tensor, target: Tensor, weight: str
    ) -> "Conv":
        """Return a convolution of this shape between whole tensors."""
        geometry = Geometry(
            shape.kernel,
            shape.stride,
            shape.before,
            shape.after,
            shape.dilation,
            shape.groups,
            shape.transposed,
        )
        return cls(layer, None, geometry, (ActivatedView(source.whole),), target.whole, weight)

    @property
    def views(self) -> tuple[ActivatedView, ...]:
        """Input views; none if the input is the patches."""
        return () if isinstance(self.inputs, PatchArray) else self.inputs

    @property
    def patches(self) -> PatchArray | None:
        """Input patches, if the step reads them."""
        return self.inputs if isinstance(self.inputs, PatchArray) else None

    @property
    def translated(self) -> PatchArray | None:
        """Translated patches, if the step writes them."""
        return self.output if isinstance(self.output, PatchArray) else None

    @property
    def source(self) -> Tensor:
        """The tensor of the first view."""
        return self.views[0].source.tensor

    @property
    def target(self) -> Tensor:
        """Target tensor."""
        assert isinstance(self.output, TensorView)
        return self.output.tensor

    @property
    def batch(self) -> int:
        """Patches in a run."""
        return self.target.batch if self.patches else self.source.batch

    @property
    def precision(self) -> Precision:
        """Precision of the weight."""
        return self.target.precision if self.patches else self.source.precision

    @property
    def channels(self) -> int:
        """Input channels, as stored; of patches, their actual number."""
        if self.patches:
            return self.patches.channels
        return sum(view.source.channels for view in self.views)

    @property
    def outputs(self) -> int:
        """Output channels, as stored; of translated patches, their actual number."""
        return self.output.channels

    @property
    def shape(self) -> ConvShape:
        """Shape by which tactics are found, for a convolution without its own custom kernel."""
        geometry, source, target = self.geometry, self.source, self.target
        extents = target.extents
        if not geometry.transposed:  # of a slab, as many planes as the source gives
            planes = source.extents[0] + geometry.before[0] + geometry.after[0]
            spanned = (geometry.kernel[0] - 1) * geometry.dilation[0]
            extents = (planes - spanned - 1) // geometry.stride[0] + 1, *extents[1:]
        return ConvShape(
            batch=source.batch,
            source_extents=source.extents,
            source_channels=source.channels,
            target_extents=extents,
            target_channels=target.channels,
            kernel=geometry.kernel,
            stride=geometry.stride,
            before=geometry.before,
            after=geometry.after,
            precision=source.precision,
            transposed=geometry.transposed,
            split_fp16=source.scale is not None,
            dilation=geometry.dilation,
            groups=geometry.groups,
        )

    @property
    def reach(self) -> Reach:
        """Receptive window of a block, of a convolution that is not transposed."""
        return Reach(self.geometry.origin, self.geometry.read_extents(self.output.extents))

    @cached_property
    def flow(self) -> Flow:
        reads = tuple(item for view in self.views for item in view.reads)
        writes: tuple[Operand, ...] = ()
        if isinstance(self.output, TensorView):
            writes = self.target, *_if_any(self.statistics and self.statistics.target)
        ends = self.patches is not None, self.translated is not None
        return Flow(reads, writes, self.statistics, *ends)


def is_planned(step: "Step") -> TypeGuard[Conv]:
    """Return whether a step is a convolution that a cuDNN plan may compute."""
    return isinstance(step, Conv) and step.kernel is None


def planned(steps: Iterable["Step"]) -> Iterator[Conv]:
    """Yield the convolutions that a cuDNN plan may compute."""
    return filter(is_planned, steps)


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """Runs of `channels` neighbouring channels that are normalised as one, from the first on.

    count: how many runs. bias: name of a float32 constant [C] that the normalised values have and
    the source lacks.
    """

    count: int
    channels: int
    bias: str | None


@dataclass(frozen=True)
class Statistics:
    """Normalisation of a view as factor and summand of each patch and channel.

    source: view whose statistics are computed. target: table of factors and summands. epsilon:
    added to the variance. scale, shift: names of learned float32 constants [C]. groups: None if
    each channel is normalised by itself.
    """

    source: TensorView
    target: AffineTable
    epsilon: float
    scale: str | None
    shift: str | None
    groups: ChannelGroups | None = None

    @cached_property
    def flow(self) -> Flow:
        return Flow((self.source.tensor,), (self.target,), self)


@dataclass(frozen=True)
class Pointwise:
    """An expression over voxels, sampled and padded -> some channels of a tensor.

    It is after(activation(norm(source * factor + summand)) + residual), `after` only with a
    residual; combination replaces the second +. The channels of the table repeat if the source has
    more of them.

    extents: those of the value after sampling and before padding. Target voxel t is the value at t
    + origin, continued past its border by mode. output: all voxels of the target. patches: which of
    the batch. table: None without a normalisation. sampling: None without. norm: None without, and
    with a sampling. around: of blocks of a volume, if the source includes a halo around each of
    them: its first voxel from the block's. excess: of the volume's value before padding, as that of
    a `Tensor`.
    """

    source: TensorView
    output: TensorView
    patches: Region
    extents: Triple
    origin: Triple
    mode: PadMode
    table: AffineTable | None = None
    activation: Activation = IDENTITY
    residual: TensorView | None = None
    sampling: Sampling | None = None
    after: Activation = IDENTITY
    combination: Combination = "add"
    norm: ChannelNorm | None = None
    around: Triple | None = None
    excess: Triple = field(default=ZEROS, repr=False)

    @property
    def target(self) -> Tensor:
        """Target tensor."""
        return self.output.tensor

    @property
    def reach(self) -> Reach:
        """Receptive window of the target in the value."""
        return Reach(self.origin, self.target.extents)

    @cached_property
    def flow(self) -> Flow:
        residual = () if self.residual is None else (self.residual.tensor,)
        reads = self.source.tensor, *residual, *_if_any(self.table)
        return Flow(reads, (self.target,))


@dataclass(frozen=True)
class Normalise:
    """Statistics of a small whole tensor and the only pass that uses them, in one launch.

    statistics, pointwise: the two steps that are one launch.
    """

    statistics: Statistics
    pointwise: Pointwise

    @cached_property
    def flow(self) -> Flow:
        passed = replace(self.pointwise, table=None).flow  # the launch keeps the table to itself
        return Flow(passed.reads, passed.writes, self.statistics)


@dataclass(frozen=True)
class Interleave:
    """Outputs of all phases of a transposed convolution -> some channels of a tensor.

    Target voxel t is phase (t + origin) % stride of cell (t + origin) // stride. Phase (rD, rH, rW)
    has its `channels` numbers in a cell after those of all phases before it, rW fastest.

    source: cells. output: all voxels of the target; up to whole vectors, zeros follow the channels.
    stride, origin: along D, H and W.
    """

    source: Tensor
    output: TensorView
    stride: Triple
    origin: Triple
    channels: int

    @property
    def target(self) -> Tensor:
        """Target tensor."""
        return self.output.tensor

    @cached_property
    def flow(self) -> Flow:
        return Flow((self.source,), (self.target,))


@dataclass(frozen=True)
class SumTaps:
    """Convolutions that left the kernel taps of H and W as channels -> translated patches.

    Source channel (o * taps_h + i) * lane_w + j at (d, h + i, w + j) is a summand of output channel
    o at (d, h, w).

    source: tensor with the taps as channels. patches: which of the batch. channels, extents: of a
    translated patch. taps: of the kernel along H and W. lane_w: channels kept for the taps along W,
    in whole vectors. bias: name of a float32 constant [C]. activation: of the result.
    """

    source: Tensor
    patches: Region
    channels: int
    extents: Triple
    taps: tuple[int, int]
    lane_w: int
    bias: str | None
    activation: Activation

    @cached_property
    def flow(self) -> Flow:
        return Flow((self.source,), to_patches=True)


@dataclass(frozen=True)
class Unpack:
    """activation(source * factor + summand) -> translated patches, `count` channels of them.

    source_channel, channel: the first that is read, and the first that is written. channels: of a
    translated patch. table: None without a normalisation.
    """

    source: TensorView
    source_channel: int
    channel: int
    count: int
    channels: int
    table: AffineTable | None
    activation: Activation

    @cached_property
    def flow(self) -> Flow:
        return Flow((self.source.tensor, *_if_any(self.table)), to_patches=True)


@dataclass(frozen=True)
class AddPatches:
    """Translated patches += patches, of `channels` channels each.

    patches: which of the batch. extents: (D, H, W) of a patch.
    """

    channels: int
    patches: Region
    extents: Triple

    @cached_property
    def flow(self) -> Flow:
        return Flow(from_patches=True, to_patches=True)


Step: TypeAlias = (
    Pack | Conv | Statistics | Pointwise | Normalise | Interleave | SumTaps | Unpack | AddPatches
)


def _if_any(table: AffineTable | None) -> tuple[AffineTable, ...]:
    return () if table is None else (table,)
