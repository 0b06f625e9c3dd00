"""The steps of which a program consists, each of which writes one tensor."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeAlias

from ..network.layers import Downsample, PadMode, Pool, Triple, Upsample
from .convolution import Convolution
from .tensors import AffineTable, Operand, Region, Tensor, TensorView
from .weight_layout import outputs_of_product, outputs_of_rows

Curve: TypeAlias = Literal["linear", "tanh", "sigmoid", "elu", "softplus", "clip", "erf"]


@dataclass(frozen=True, slots=True)
class Activation:
    """Of x below 0, linear gives slope * x and elu slope * (exp(x) - 1); x itself above.

    curve: tanh, sigmoid, softplus and erf are those of x, clip keeps it from low to high. slopes:
    name of a float32 constant [stored channels] with linear's slope of each channel, in place of
    the one slope. A value that is not finite leaves every activation as not finite.
    """

    slope: float = 1.0
    curve: Curve = "linear"
    low: float = -inf
    high: float = inf
    slopes: str | None = None


IDENTITY = Activation()


Combination: TypeAlias = Literal["add", "subtract", "multiply", "gate"]
"""How two tensors of one shape are combined, voxel by voxel.

But for gate, where the first channel of the second tensor multiplies all of the first."""


Sampling: TypeAlias = Upsample | Downsample | Pool
"""What a pass over voxels does between grids of different extents."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What goes through a step, but for patches and constants that it has by their names.

    reads, writes: tensors and tables. measures: statistics that the step takes, whatever else it
    does.
    """

    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    measures: "Statistics | None" = None

    @property
    def touches(self) -> tuple[Operand, ...]:
        """What has to be there while the step runs."""
        return *self.reads, *self.writes

    @property
    def touched_names(self) -> set[str]:
        """Names of what has to be there while the step runs."""
        return {item.name for item in self.touches}

    @property
    def written_names(self) -> set[str]:
        """Names of what the step writes."""
        return {item.name for item in self.writes}

    @property
    def read_names(self) -> set[str]:
        """Names of what the step reads."""
        return {item.name for item in self.reads}

    @property
    def tables(self) -> tuple[AffineTable, ...]:
        """By which the step normalises what it reads."""
        return tuple(item for item in self.reads if isinstance(item, AffineTable))


@dataclass(frozen=True, slots=True)
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
    def flow(self) -> Flow:
        return Flow(writes=(self.target,))


@dataclass(frozen=True, slots=True)
class ConvolvePatches:
    """The first layer straight from the patches, by an own kernel for matrix units.

    weight: `weight_layout.matrix_operands`, for stride 2 `strided_operands`, with wgmma
    `row_operands`. wgmma: whether by warp groups, for a kernel of 7^3 or 3^3. Target voxel v reads
    the patch from stride * v + origin on. statistics: of the target, if it measures that too; with
    stride 1. layer: its name. channels: of a patch. extents: (D, H, W) of a patch. mode: how it
    goes on past its border. kernel: extents (D, H, W). stride: along all axes, 2 for 4^3 alone.
    """

    layer: str
    target: Tensor
    channels: int
    extents: Triple
    origin: Triple
    mode: PadMode
    kernel: Triple
    weight: str
    statistics: "Statistics | None" = None
    stride: int = 1
    wgmma: bool = False

    @property
    def outputs_per_product(self) -> int:
        """Of the target's channels, in a product by warp groups."""
        return outputs_of_rows(self.target.channels, self.kernel[0])

    @property
    def rows_per_product(self) -> int:
        """Rows of the target in a product; a row's place among them decides how its sums round."""
        return 64 // self.outputs_per_product if self.wgmma else 1

    @property
    def flow(self) -> Flow:
        return Flow((), *_made(self.target, self.statistics))


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
        """Of what steps make."""
        return self.source.tensor, *_given(self.table)


@dataclass(frozen=True, slots=True)
class ConvolveToPatches:
    """The last layer, to the translated patches, by the own kernel for matrix units; stride 1.

    weight: `weight_layout.column_operands`, with wgmma `turned_operands`. wgmma: whether by warp
    groups. bias: name of a float32 constant [C]. layer: its name.
    part: the last feature maps, which warp groups alone activate, with a slope between 0
    and 1. origin, mode: as in Pointwise. kernel, extents: (D, H, W), of the kernel and of a patch.
    channels: of a translated patch. activation: of the result. around: as in Pointwise.
    """

    layer: str
    part: ActivatedView
    origin: Triple
    mode: PadMode
    kernel: Triple
    weight: str
    channels: int
    extents: Triple
    bias: str | None
    activation: Activation
    wgmma: bool = False
    around: Triple | None = None

    @property
    def source(self) -> TensorView:
        """Of the last feature maps, as they lie in memory."""
        return self.part.source

    @property
    def flow(self) -> Flow:
        return Flow(self.part.reads)


@dataclass(frozen=True, slots=True)
class ConvTransposeToCells:
    """A transposed convolution that doubles its source, by the own kernel for warp groups.

    3^3 of stride 2, padding 1 and output padding 1. weight: `weight_layout.doubling_operands`.
    layer: its name. source: read whole; of blocks of a volume it holds one voxel more behind those
    of the cells. target: all of its tensor, shuffled. statistics: of the target, if it measures
    that too.
    """

    layer: str
    source: Tensor
    target: TensorView
    weight: str
    statistics: "Statistics | None" = None

    @property
    def outputs_per_product(self) -> int:
        """Of the target's channels, in a product."""
        return outputs_of_product(self.target.channels)

    @property
    def flow(self) -> Flow:
        return Flow((self.source,), *_made(self.target.tensor, self.statistics))


@dataclass(frozen=True, slots=True)
class ConvTransposeVoxels:
    """A transposed convolution, 2^3 of stride 2, by the own kernel for matrix units.

    layer: its name. source: all of a tensor, whose slope is not above 1. target: all of its tensor,
    shuffled. weight: `weight_layout.voxel_operands`.
    """

    layer: str
    source: ActivatedView
    target: TensorView
    weight: str

    @property
    def flow(self) -> Flow:
        return Flow(self.source.reads, (self.target.tensor,))


@dataclass(frozen=True, slots=True)
class ConvolveByPlanes:
    """A convolution of 3^3 and padding 1, by an own kernel for warp groups.

    parts: one or two, whose channels follow each other; around them lie zeros. With stride 2 there
    is one, all of its tensor, whose slope lies between 0 and 1. weight:
    `weight_layout.OPERANDS_BY_PLANES`. layer: its name. statistics: of the target, if it measures
    that too. stride: along all axes. around: as in Pointwise.
    """

    layer: str
    parts: tuple[ActivatedView, ...]
    target: Tensor
    weight: str
    statistics: "Statistics | None" = None
    stride: int = 1
    around: Triple | None = None

    @property
    def channels(self) -> int:
        """Of what is read."""
        return sum(part.source.channels for part in self.parts)

    @property
    def flow(self) -> Flow:
        return Flow(_read(self.parts), *_made(self.target, self.statistics))


@dataclass(frozen=True, slots=True)
class ConvTransposeToPatches:
    """The last layer as a transposed convolution, 4^3 of stride 2 and padding 1, to the patches.

    By the own kernel for matrix units. parts: one or two, whose channels follow each other. weight:
    `weight_layout.cell_operands`; bias: name of a float32 constant [C]. layer: its name. channels,
    extents: of a translated patch. activation: of the result.
    """

    layer: str
    parts: tuple[ActivatedView, ...]
    weight: str
    channels: int
    extents: Triple
    bias: str | None
    activation: Activation

    @property
    def flow(self) -> Flow:
        return Flow(_read(self.parts))


@dataclass(frozen=True, slots=True)
class ConvolveVoxels:
    """The last layer, of kernel 1^3, to the translated patches, by an own kernel.

    source: all of its tensor, in the layout of voxels. weight: name of a float32 constant [K, C],
    bias: of one [K]. layer: its name. channels: of a translated patch. activation: of the result.
    """

    layer: str
    source: ActivatedView
    weight: str
    channels: int
    bias: str | None
    activation: Activation

    @property
    def flow(self) -> Flow:
        return Flow(self.source.reads)


@dataclass(frozen=True, slots=True)
class Convolve:
    """Source * weight * scale -> region of target.

    weight: [K, kD, kH, kW, C / groups], C the forward input's. scale: 1 but for split fp16, of
    which it takes the powers of two away. layer: its name. shape: extents and channels of a run.
    source: read whole.
    """

    layer: str
    shape: Convolution
    source: Tensor
    target: Tensor
    region: Region
    weight: str
    scale: float = 1.0

    @property
    def flow(self) -> Flow:
        return Flow((self.source,), (self.target,))


@dataclass(frozen=True, slots=True)
class ChannelGroups:
    """Runs of `channels` neighbouring channels that are normalised as one, from the first on.

    count: how many runs. bias: name of a float32 constant [C] that the normalised values have and
    the source lacks.
    """

    count: int
    channels: int
    bias: str | None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Normalisation of a view as factor and summand of each patch and channel.

    scale, shift: names of learned float32 constants [C]. groups: None where each channel is
    normalised by itself. source: what is measured. target: where factors and summands go. epsilon:
    added to the variance.
    """

    source: TensorView
    target: AffineTable
    epsilon: float
    scale: str | None
    shift: str | None
    groups: ChannelGroups | None = None

    @property
    def flow(self) -> Flow:
        return Flow((self.source.tensor,), (self.target,), self)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An expression over voxels, sampled and padded -> channels of target.

    It is after(activation(source * factor + summand) + residual), `after` only with a residual;
    combination says what stands for the second +. The channels of the table repeat where the source
    has more of them.

    extents: those of the value after sampling and before padding. Target voxel t holds the value at
    t + origin, continued past its border by mode. patches: which of the batch. first_channel: of
    the target. table: None without a normalisation. sampling: None without. shuffles: whether the
    target holds cells of 2 x 2 x 2 voxels as 8 groups of channels. around: of blocks of a volume,
    where the source holds more around each of them than it has: its first voxel from the block's.
    """

    source: TensorView
    target: Tensor
    patches: Region
    extents: Triple
    origin: Triple
    mode: PadMode
    first_channel: int = 0
    table: AffineTable | None = None
    activation: Activation = IDENTITY
    residual: TensorView | None = None
    sampling: Sampling | None = None
    after: Activation = IDENTITY
    combination: Combination = "add"
    shuffles: bool = False
    around: Triple | None = None

    @property
    def target_extents(self) -> Triple:
        """(D, H, W) of the voxels that the target holds."""
        depth, height, width = self.target.extents
        return (2 * depth, 2 * height, 2 * width) if self.shuffles else self.target.extents

    @property
    def flow(self) -> Flow:
        beside = () if self.residual is None else (self.residual.tensor,)
        reads = self.source.tensor, *beside, *_given(self.table)
        return Flow(reads, (self.target,))


@dataclass(frozen=True, slots=True)
class Normalise:
    """Statistics of a small whole tensor and the only pass that uses them, in one launch.

    statistics, pointwise: the two steps that are one launch.
    """

    statistics: Statistics
    pointwise: Pointwise

    @property
    def flow(self) -> Flow:
        passed = replace(self.pointwise, table=None).flow  # the launch keeps the table to itself
        return Flow(passed.reads, passed.writes, self.statistics)


@dataclass(frozen=True, slots=True)
class SumTaps:
    """Convolutions that left the kernel taps of H and W as channels -> translated patches.

    Source channel (o * taps_h + i) * lane_w + j at (d, h + i, w + j) is a summand of output channel
    o at (d, h, w). bias: name of a float32 constant [C]. source: tensor with the taps as channels.
    patches: which of the batch. channels, extents: of a translated patch. taps: of the kernel along
    H and W. activation: of the result.
    """

    source: Tensor
    patches: Region
    channels: int
    extents: Triple
    taps: tuple[int, int]
    lane_w: int
    bias: str | None
    activation: Activation

    @property
    def flow(self) -> Flow:
        return Flow((self.source,))


@dataclass(frozen=True, slots=True)
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

    @property
    def flow(self) -> Flow:
        return Flow((self.source.tensor, *_given(self.table)))


@dataclass(frozen=True, slots=True)
class AddPatches:
    """Translated patches += patches, of `channels` channels each.

    patches: which of the batch. extents: (D, H, W) of a patch.
    """

    channels: int
    patches: Region
    extents: Triple

    @property
    def flow(self) -> Flow:
        return Flow()


Step: TypeAlias = (
    Pack
    | ConvolvePatches
    | Convolve
    | ConvolveToPatches
    | ConvTransposeToPatches
    | ConvolveVoxels
    | ConvTransposeToCells
    | ConvTransposeVoxels
    | ConvolveByPlanes
    | Statistics
    | Pointwise
    | Normalise
    | SumTaps
    | Unpack
    | AddPatches
)


def _given(table: AffineTable | None) -> tuple[AffineTable, ...]:
    return () if table is None else (table,)


def _read(parts: Iterable[ActivatedView]) -> tuple[Operand, ...]:
    return tuple(item for part in parts for item in part.reads)


def _made(
    target: Tensor, statistics: Statistics | None
) -> tuple[tuple[Operand, ...], Statistics | None]:
    """What a convolution writes that may take statistics of its target, and those."""
    return (target, *_given(statistics and statistics.target)), statistics
