"""Random graphs of all kinds of layers that keep the extents of a patch, small enough for NumPy."""

from collections.abc import Sequence
from math import prod
from random import Random

from cuda_cyclegan.engine.errors import PatchShapeError
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Node, TensorShape
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Channels,
    Clip,
    Concat,
    Constant,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    Elu,
    GroupNorm,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Multiply,
    Pad,
    Pool,
    PRelu,
    Relu,
    Sigmoid,
    Softplus,
    Subtract,
    Tanh,
    Triple,
    Upsample,
    subtracted,
    triple,
)

_CHANNELS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
_KERNELS: tuple[Triple, ...] = ((1, 1, 1), (3, 3, 3), (5, 5, 5), (7, 7, 7), (1, 3, 3), (3, 1, 5))
_HALVING = (3, 1), (4, 1), (2, 0)
"""Kernel and padding of convolutions of stride 2."""
_DOUBLING = (3, 1, 1), (4, 1, 0), (2, 0, 0), (6, 2, 0), (5, 2, 1)
"""Kernel, padding and output padding of transposed ones."""
_HALVING_OFF_GRID = (3, 0), (5, 1), (2, 1), (4, 0)
_DOUBLING_OFF_GRID = (3, 0, 0), (3, 1, 0), (4, 0, 0), (2, 1, 0), (5, 1, 0)
"""The same, of more or fewer voxels than half or twice as many."""

_DEEPEST = 2


def random_graph(
    random: Random,
    patch: Triple,
    *,
    numbers: int = 200_000,
    weights: int = 200_000,
    channels: Sequence[int] = _CHANNELS,
    off_grid: bool = False,
) -> Graph | None:
    """Return a graph for a patch of even extents at both halvings; None if the random layers make
    none.

    numbers: of a feature map, at most. weights: of all layers, at most. channels: of its inner
    layers. off_grid: whether maps may have more or fewer voxels than strides make of the patch.
    """
    growing = _Growing(random, patch, numbers, weights, channels, off_grid=off_grid)
    usual = growing.convolve, growing.halve, growing.double, growing.join, growing.act, growing.act
    for _ in range(random.randint(2, 8)):
        random.choice((*usual, growing.leave_grid, growing.fit) if off_grid else usual)()
    while growing.level and growing.double():
        pass
    if off_grid:
        growing.fit()
    growing.convolve()
    used = {name for node in growing.nodes for name in node.inputs}
    is_whole = all(node.name in used for node in growing.nodes[:-1])
    return growing.finished() if is_whole else None


class _Growing:
    """A graph to which layers are added; each that does not fit is left out."""

    def __init__(
        self,
        random: Random,
        patch: Triple,
        numbers: int,
        weights: int,
        widths: Sequence[int],
        *,
        off_grid: bool,
    ) -> None:
        self._off_grid = off_grid
        self._random = random
        self._most_numbers, self._most_weights = numbers, weights
        self._widths = widths
        self.channels = random.choice((1, 1, 2, 3))
        self.nodes: list[Node] = []
        self.level = 0
        self._patch = patch
        self._shapes = {INPUT: TensorShape(self.channels, patch)}
        self._last = INPUT

    def finished(self) -> Graph | None:
        """The graph, if a patch leaves it as it came."""
        is_kept = self.nodes and self._shapes[self._last].extents == self._patch
        return Graph(self.channels, tuple(self.nodes)) if is_kept else None

    def convolve(self) -> bool:
        """A convolution that keeps the extents, padded by itself or before."""
        kernel, dilation = self._random.choice(_KERNELS), self._random.choice((1, 1, 1, 2))
        padding = triple(dilation * (taps - 1) // 2 for taps in kernel)
        if self._random.random() < 0.4:
            modes = "reflect", "replicate", "zero", Constant(0.5)
            if not self._add(Pad(self._random.choice(modes), padding, padding)):
                return False
            padding = 0, 0, 0
        return self._add_convolution(kernel, (1, 1, 1), padding, (dilation,) * 3)

    def halve(self) -> bool:
        """A convolution of stride 2, a pooling, or a filter."""
        offered = (*_HALVING, *_HALVING_OFF_GRID) if self._off_grid else _HALVING
        kernel, padding = self._random.choice(offered)
        kind = self._random.randrange(4)
        if self.level == _DEEPEST:
            return False
        if kind < 2:
            has_added = self._add_convolution((kernel,) * 3, (2, 2, 2), (padding,) * 3, (1, 1, 1))
        elif kind == 2:
            mode = self._random.choice(("largest", "mean"))
            window = (kernel, padding) if self._off_grid else (2, 0)
            has_added = self._add(Pool(mode, (window[0],) * 3, (2, 2, 2), (window[1],) * 3))
        else:
            has_added = self._add(Downsample(self._random.choice((3, 4)), (2, 2, 2), "replicate"))
        self.level += has_added
        return has_added

    def double(self) -> bool:
        """A transposed convolution of stride 2, or sampling."""
        if not self.level:
            return False
        if self._random.random() < 0.3:
            mode = self._random.choice(("nearest", "trilinear"))
            has_added = self._add(Upsample(mode, (2, 2, 2)))
        else:
            into, out, groups = self._ends()
            offered = (*_DOUBLING, *_DOUBLING_OFF_GRID) if self._off_grid else _DOUBLING
            kernel, padding, extra = self._random.choice(offered)
            name = f"{len(self.nodes)}.weight"
            has_added = self._add(
                ConvTranspose3d(
                    into,
                    out,
                    (kernel,) * 3,
                    name,
                    self._bias(),
                    (2, 2, 2),
                    (padding,) * 3,
                    (extra,) * 3,
                    groups=groups,
                )
            )
        self.level -= has_added
        return has_added

    def leave_grid(self) -> bool:
        """A convolution, a pool, a border or a cut that changes the extents by a few voxels."""

        def few() -> Triple:
            return triple(self._random.choice((0, 1, 1, 2)) for _ in range(3))

        match self._random.randrange(4):
            case 0:
                return self._add_convolution((3, 3, 3), (1, 1, 1), few(), (1, 1, 1))
            case 1:
                mode, counts = self._random.choice(("largest", "mean")), self._random.random() < 0.5
                return self._add(Pool(mode, (3, 3, 3), (1, 1, 1), few(), counts))
            case 2:
                modes = "reflect", "replicate", "zero", Constant(0.5)
                return self._add(Pad(self._random.choice(modes), few(), few()))
            case _:
                return self._add(Crop(few(), few()))

    def fit(self) -> bool:
        """A border and a cut, at either end, that bring a map back to the extents of its level."""
        level = triple(extent >> self.level for extent in self._patch)
        missing = subtracted(level, self._shapes[self._last].extents)
        before = triple(self._random.choice((0, number // 2, number)) for number in missing)
        ends = before, subtracted(missing, before)
        grown, cut = (
            [triple(max(0, sign * number) for number in end) for end in ends] for sign in (1, -1)
        )
        has_added = False
        if any((*grown[0], *grown[1])):
            modes = "reflect", "replicate", "zero", Constant(0.5)
            has_added = self._add(Pad(self._random.choice(modes), grown[0], grown[1]))
        if any((*cut[0], *cut[1])):
            has_added = self._add(Crop(cut[0], cut[1]))
        return has_added

    def join(self) -> bool:
        """The last tensor with one before it."""
        own = self._shapes[self._last]
        others = [
            name
            for name, shape in self._shapes.items()
            if name != self._last and shape.extents == own.extents
        ]
        if not others:
            return False
        other = self._random.choice(others)
        alike = (Add(), Subtract(), Multiply()) if self._shapes[other] == own else ()
        inputs = (self._last, other) if self._random.random() < 0.5 else (other, self._last)
        return self._add(self._random.choice((*alike, Concat())), inputs)

    def act(self) -> bool:
        """A norm, an activation, or some of the channels."""
        channels, name = self._shapes[self._last].channels, str(len(self.nodes))
        scale, shift = (
            f"{name}.{role}" if self._random.random() < 0.5 else None for role in ("scale", "shift")
        )
        groups = self._random.choice([g for g in range(1, channels + 1) if channels % g == 0])
        first = self._random.randrange(channels)
        return self._add(
            self._random.choice(
                (
                    InstanceNorm(channels, scale, shift),
                    InstanceNorm(channels, scale, shift),
                    GroupNorm(channels, groups, scale, shift),
                    ChannelAffine(channels, f"{name}.scale", f"{name}.shift"),
                    *(Relu(), LeakyRelu(0.2), Elu(), Softplus(), Tanh(), Sigmoid()),
                    Clip(-1.0, 1.5),
                    PRelu(channels, f"{name}.slope"),
                    Channels(first, self._random.randint(1, channels - first)),
                )
            )
        )

    def _ends(self) -> tuple[int, int, int]:
        """Channels in and out, and the groups into which they fall."""
        into, out = self._shapes[self._last].channels, self._random.choice(self._widths)
        shared = [g for g in range(1, into + 1) if into % g == 0 == out % g]
        return into, out, self._random.choice(shared) if self._random.random() < 0.4 else 1

    def _bias(self) -> str | None:
        return f"{len(self.nodes)}.bias" if self._random.random() < 0.5 else None

    def _add_convolution(
        self, kernel: Triple, stride: Triple, padding: Triple, dilation: Triple
    ) -> bool:
        into, out, groups = self._ends()
        name = f"{len(self.nodes)}.weight"
        return self._add(
            Conv3d(into, out, kernel, name, self._bias(), stride, padding, dilation, groups)
        )

    def _add(self, layer: Layer, inputs: tuple[str, ...] | None = None) -> bool:
        node = Node(f"node{len(self.nodes)}", layer, inputs or (self._last,))
        graph = Graph(self.channels, (*self.nodes, node))
        try:
            shape = graph.shapes(self._patch)[node.name]
        except PatchShapeError:
            return False
        weights = sum(prod(size) for _, size in graph.weight_shapes())
        if shape.channels * prod(shape.extents) > self._most_numbers:
            return False
        if weights > self._most_weights:
            return False
        self.nodes.append(node)
        self._shapes[node.name], self._last = shape, node.name
        return True
