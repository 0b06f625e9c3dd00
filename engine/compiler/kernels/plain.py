"""Reference of a custom kernel: passes and a plain convolution that compute the same result.

This module only describes them: which memory both sides take, and how each packs its weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np

from ...network.graph_analysis import transposed_reach
from ...network.layers import ONES, ZEROS, FloatArray, added, subtracted, triple
from ..steps import (
    IDENTITY,
    ActivatedView,
    Activation,
    Conv,
    ConvShape,
    Geometry,
    Pack,
    Pointwise,
    Statistics,
)
from ..tensors import (
    NUMBER_BYTES,
    PATCHES,
    TRANSLATED,
    AffineTable,
    Region,
    Tensor,
    TensorView,
    stored_channels,
)
from ..weight_layout import PackedWeight, forward, subpixels, transposed
from .table import kernel_of

PLAIN_WEIGHT, STORED_WEIGHT = "plain weight", "stored weight"
_PLAIN_SOURCE = "plain source"


@dataclass(frozen=True, slots=True)
class PlainCounterpart:
    """A convolution by a custom kernel, and the plain one of the same result.

    conv: of weight STORED_WEIGHT, without bias, activation and learned parameters of a norm.
    passes: they write the plain convolution's source. shape: of the plain convolution.
    weight_shape: [K, C, kD, kH, kW], of a transposed one to patches [C, K, ...]. weights: how each
    of the two packs such a weight, by name.
    """

    conv: Conv
    passes: tuple[Pack | Pointwise, ...]
    shape: ConvShape
    weight_shape: tuple[int, ...]
    weights: Mapping[str, Callable[[FloatArray], PackedWeight]]

    @property
    def sources(self) -> tuple[Tensor, ...]:
        """Tensors to be filled; none if the patches are read."""
        return tuple(dict.fromkeys(view.source.tensor for view in self.conv.views))

    @property
    def tables(self) -> tuple[AffineTable, ...]:
        """Tables with which the convolution and the passes normalise their input."""
        return tuple(dict.fromkeys(self.conv.flow.tables))

    @property
    def output(self) -> Tensor | None:
        """Tensor that both write; None if the output is the translated patches."""
        return None if self.conv.translated else self.conv.target

    @property
    def measured(self) -> Statistics | None:
        """Statistics that the kernel computes in its epilogue."""
        return self.conv.statistics

    @property
    def tensor_bytes(self) -> Mapping[str, int]:
        """Bytes by name of the tensors that both read and write."""
        source, output, conv = self.passes[0].target, self.output, self.conv
        tensors = *self.sources, source, *((output,) if output else ())
        sizes = {tensor.name: tensor.bytes for tensor in tensors}
        for name, end in ((PATCHES, conv.patches), (TRANSLATED, conv.translated)):
            if end is not None:
                sizes[name] = 4 * source.batch * end.channels * prod(end.extents)
        return sizes

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes by name of the memory that both take, besides tables."""
        stored = self.weights[STORED_WEIGHT](np.zeros(self.weight_shape, np.float32))
        return {
            **self.tensor_bytes,
            PLAIN_WEIGHT: self.shape.weights * NUMBER_BYTES[self.shape.precision],
            STORED_WEIGHT: 4 * stored.size,
        }


def of_one_patch(conv: Conv) -> Conv:
    """Return the convolution of the first patch only, which takes less memory."""
    return _of_first_patch(conv)


def _of_first_patch(part: Any) -> Any:
    if isinstance(part, Tensor):
        return replace(part, batch=1)
    if isinstance(part, AffineTable):
        return replace(part, patches=1)
    if isinstance(part, tuple):
        return tuple(map(_of_first_patch, cast("tuple[Any, ...]", part)))
    if not is_dataclass(part) or isinstance(part, type):
        return part
    held = {field.name: _of_first_patch(getattr(part, field.name)) for field in fields(part)}
    return replace(part, **held)


def with_whole_output(conv: Conv) -> Conv:
    """Return a convolution to channels of a joined map as one to a tensor of these channels."""
    output = conv.output
    if not isinstance(output, TensorView) or output.lanes is None:
        return conv
    return replace(conv, output=replace(output.tensor, channels=output.channels).whole)


def plain_counterpart(conv: Conv) -> PlainCounterpart:
    """Return the passes and the plain convolution that compute the result of a custom kernel.

    Bias, activation and everything else that is not the convolution itself are omitted. For a
    kernel that writes cells, the plain convolution has as many channels as a cell.
    """
    bare, geometry = _bare(conv), conv.geometry
    source, passes = _plain_source(bare)
    output = _output(bare)
    to_cells = geometry.transposed and not conv.translated
    moves = _of_cells(geometry, source, output) if to_cells else _plain_geometry(bare)
    inputs = (ActivatedView(source.whole),)
    shape = replace(bare, kernel=None, geometry=moves, inputs=inputs, output=output.whole).shape
    ends = bare.outputs, bare.channels
    return PlainCounterpart(
        conv=bare,
        passes=passes,
        shape=shape,
        weight_shape=(*(ends[::-1] if shape.transposed else ends), *geometry.kernel),
        weights=_weights(bare, source.channels, to_cells),
    )


def _weights(
    conv: Conv, channels: int, to_cells: bool
) -> Mapping[str, Callable[[FloatArray], PackedWeight]]:
    """Return both weight layouts; channels: that the plain convolution reads."""
    geometry, pack, slots = conv.geometry, kernel_of(conv).pack, range(conv.channels)
    assert pack is not None

    def stored(weight: FloatArray) -> PackedWeight:
        return pack(weight.swapaxes(0, 1) if to_cells else weight, slots, conv.channels)

    def plainly(weight: FloatArray) -> PackedWeight:
        if to_cells:
            return subpixels(weight.swapaxes(0, 1), geometry.before, slots, channels, conv.outputs)
        pack_plain = transposed if geometry.transposed else forward
        return pack_plain(weight, slots, channels, conv.outputs)

    return {PLAIN_WEIGHT: plainly, STORED_WEIGHT: stored}


def _output(conv: Conv) -> Tensor:
    """Return the tensor that both write; translated patches are treated as a tensor."""
    output = conv.output
    if isinstance(output, TensorView):
        return output.tensor
    return Tensor(TRANSLATED, conv.batch, output.extents, output.channels, conv.precision)


def _bare(conv: Conv) -> Conv:
    """Return the convolution without learned parameters, which no comparison uses."""
    statistics = conv.statistics
    if statistics is not None:
        groups = statistics.groups and replace(statistics.groups, bias=None)
        statistics = replace(statistics, scale=None, shift=None, groups=groups)
    bare = replace(
        with_whole_output(conv),
        weight=STORED_WEIGHT,
        bias=None,
        activation=IDENTITY,
        lanes=None,
        statistics=statistics,
    )
    if conv.patches:
        return bare
    if conv.geometry.transposed and conv.translated:  # sums of 4^3 taps leave no digit to spare
        return replace(bare, inputs=tuple(ActivatedView(view.source) for view in conv.views))
    exact = (replace(view, activation=_exact(view.activation)) for view in conv.views)
    return replace(bare, inputs=tuple(exact))


def _exact(activation: Activation) -> Activation:
    """Return the activation with a slope so short that the sums of both convolutions stay exact."""
    return activation if activation.slope in (0, 1) else replace(activation, slope=0.25)


def _plain_source(conv: Conv) -> tuple[Tensor, tuple[Pack | Pointwise, ...]]:
    """Return the input of the plain convolution, and the steps that write it.

    Patches, and inputs that a last layer pads, have their border in memory.
    """
    geometry, batch = conv.geometry, conv.batch
    whole, precision = Region(0, batch), conv.precision
    extents = conv.reach.extents
    if conv.patches:
        channels = stored_channels(conv.channels, precision)
        source = Tensor(_PLAIN_SOURCE, batch, extents, channels, precision)
        patches = conv.patches
        pack = Pack(
            source, whole, patches.channels, patches.extents, geometry.origin, geometry.mode
        )
        return source, (pack,)
    origin = geometry.origin
    if not _has_border(conv):
        origin, extents = ZEROS, conv.views[0].source.extents
    source = Tensor(_PLAIN_SOURCE, batch, extents, conv.channels, precision)
    passes: list[Pointwise] = []
    first = 0
    for part in conv.views:
        view = part.source
        output = replace(source.whole, lanes=(first, first + view.channels))
        arguments = view, output, whole, view.extents, origin, geometry.mode
        passes.append(Pointwise(*arguments, table=part.table, activation=part.activation))
        first += view.channels
    return source, tuple(passes)


def _has_border(conv: Conv) -> bool:
    """Return whether the plain convolution's source holds all that is read."""
    return not conv.geometry.transposed and bool(conv.patches or conv.translated)


def _plain_geometry(conv: Conv) -> Geometry:
    geometry = replace(conv.geometry, mode="zero")
    return replace(geometry, before=ZEROS, after=ZEROS) if _has_border(conv) else geometry


def _of_cells(geometry: Geometry, source: Tensor, output: Tensor) -> Geometry:
    """Return the geometry of a plain convolution to as many channels as cells have."""
    sizes = zip(geometry.kernel, geometry.before, strict=True)
    reach = [transposed_reach(taps, before) for taps, before in sizes]
    before = triple(-first for first, _ in reach)
    kernel = triple(last - first + 1 for first, last in reach)
    after = subtracted(added(output.extents, kernel), ONES, before, source.extents)
    return Geometry(kernel, before=before, after=after)
