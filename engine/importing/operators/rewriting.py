"""Layers of a converted graph that form one layer together, joined; those not needed, dropped.

Nothing is recomputed: an affine map joins the norm before it, and the filters of anti-aliased
networks, which are convolutions in the file, become `Downsample` and `Upsample` layers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace

from ...network.graph import INPUT, Node
from ...network.layers import (
    ONES,
    TWOS,
    ChannelAffine,
    Conv3d,
    ConvTranspose3d,
    Crop,
    Downsample,
    FloatArray,
    GroupNorm,
    InstanceNorm,
    Layer,
    Pad,
    Triple,
    Upsample,
    added,
    kind_of,
    multiplied,
    subtracted,
)

_MOST_TAPS, _MOST_PADDING = 7, 64


def simplified(
    nodes: Sequence[Node], weights: Mapping[str, FloatArray], output: str
) -> tuple[tuple[Node, ...], dict[str, FloatArray]]:
    """Return the nodes that the output needs, named after their layers, and the weights."""
    rewriter = _Rewriter(nodes, weights, output)
    for rule in _REWRITINGS:
        rewriter.apply(rule)
    return rewriter.finished()


class _Rewriter:
    """Applies rules to each node and the chain of predecessors that nothing else reads."""

    def __init__(
        self, nodes: Sequence[Node], weights: Mapping[str, FloatArray], output: str
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.weights = dict(weights)
        self._output = output

    def apply(self, rule: "_Rewriting") -> None:
        """Apply a rule wherever it fits, starting at the input."""
        readers = self._readers()
        for name in list(self.nodes):
            node = self.nodes[name]
            chain = [node]
            while (before := self.nodes.get(chain[-1].inputs[0])) and readers[before.name] == 1:
                chain.append(before)
                if len(chain) == _LONGEST_CHAIN:
                    break
            if replacement := rule([one.layer for one in chain], self.weights):
                self._replace(chain[: replacement.length], replacement.layers)

    def _replace(self, chain: list[Node], layers: tuple[Layer, ...]) -> None:
        for node in chain[len(layers) :]:
            del self.nodes[node.name]
        before = (*((node.name,) for node in chain[1 : len(layers)]), chain[-1].inputs)
        for node, layer, inputs in zip(chain, layers, before, strict=False):
            self.nodes[node.name] = Node(node.name, layer, inputs)

    def _readers(self) -> Counter[str]:
        readers = Counter(name for node in self.nodes.values() for name in node.inputs)
        readers[self._output] += 1
        return readers

    def finished(self) -> tuple[tuple[Node, ...], dict[str, FloatArray]]:
        needed = {self._output}
        for node in reversed(self.nodes.values()):
            if node.name in needed:
                needed.update(node.inputs)
        kept = [node for node in self.nodes.values() if node.name in needed]
        names = {INPUT: INPUT}
        renamed: list[Node] = []
        weights: dict[str, FloatArray] = {}
        for number, node in enumerate(kept):
            name = names[node.name] = f"{number}.{kind_of(node.layer)}"
            layer = self._renamed(node.layer, name, weights)
            renamed.append(Node(name, layer, tuple(names[one] for one in node.inputs)))
        return tuple(renamed), weights

    def _renamed(self, layer: Layer, name: str, weights: dict[str, FloatArray]) -> Layer:
        """Return the layer with weights named after its node, and store them."""
        roles = [role for role in _ROLES if isinstance(getattr(layer, role, None), str)]
        for role in roles:
            weights[f"{name}.{role}"] = self.weights[getattr(layer, role)]
        return replace(layer, **{role: f"{name}.{role}" for role in roles})


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Replacement of layers, the last one first. length: number of layers it replaces."""

    length: int
    layers: tuple[Layer, ...]


_Weights: TypeAlias = dict[str, FloatArray]
_Rewriting: TypeAlias = Callable[[list[Layer], _Weights], _Replacement | None]
"""Rule from a layer and its predecessors, the nearest first, to the layers that replace them."""

_LONGEST_CHAIN = 3
_ROLES = ("weight", "bias", "scale", "shift", "slope")


def _joined_affines(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    match chain:
        case [ChannelAffine(channels, ones, shift), ChannelAffine(_, scale, zeros), *_] if (
            weights[ones] == 1
        ).all() and not weights[zeros].any():
            return _Replacement(2, (ChannelAffine(channels, scale, shift),))
        case _:
            return None


def _affine_norm(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [
            ChannelAffine(_, scale, shift),
            (InstanceNorm(scale=None, shift=None) | GroupNorm(scale=None, shift=None)) as norm,
            *_,
        ]:
            return _Replacement(2, (replace(norm, scale=scale, shift=shift),))
        case _:
            return None


def _joined_crops(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [Crop(before, after), Crop(sooner, later), *_]:
            return _Replacement(2, (Crop(added(before, sooner), added(after, later)),))
        case _:
            return None


def _joined_pads(chain: list[Layer], _: _Weights) -> _Replacement | None:
    """Join borders of one mode, such as those that samplings of single axes put one by one."""
    match chain:
        case [Pad(mode, before, after), Pad(same, sooner, later), *_] if mode == same:
            both = zip(added(before, after), added(sooner, later), strict=True)
            if mode == "reflect" and any(one and other for one, other in both):
                return None  # the second border may reflect the first
            return _Replacement(2, (Pad(mode, added(before, sooner), added(after, later)),))
        case _:
            return None


def _cropped_transposed(chain: list[Layer], _: _Weights) -> _Replacement | None:
    """Replace a crop of a transposed convolution by more of its padding, which cuts off as much."""
    match chain:
        case [Crop(before, after), ConvTranspose3d(padding=padding, reach=reach) as conv, *_]:
            cut = added(padding, before)
            extra = added(conv.output_padding, subtracted(before, after))
            if any(one >= taps for one, taps in zip(cut, reach, strict=True)):
                return None
            return _with_ends(conv, cut, extra)
        case _:
            return None


def _padded_transposed(chain: list[Layer], _: _Weights) -> _Replacement | None:
    """Drop zeros around the input of a transposed convolution, which add nothing to its output."""
    match chain:
        case [
            ConvTranspose3d(padding=padding, stride=stride) as conv,
            Pad("zero", before, after),
            *_,
        ]:
            cut = subtracted(padding, multiplied(stride, before))
            more = multiplied(stride, subtracted(after, before))
            return _with_ends(conv, cut, added(conv.output_padding, more))
        case _:
            return None


def _is_padding(ends: Triple) -> bool:
    """Return whether a layer may have this padding."""
    return min(ends) >= 0 and max(ends) <= _MOST_PADDING


def _with_ends(conv: ConvTranspose3d, padding: Triple, extra: Triple) -> _Replacement | None:
    """Replace two layers by a transposed convolution with these ends, if there is one.

    ONNX Runtime rejects an output padding of a stride or more, whatever the dilation.
    """
    is_end = all(0 <= one < step for one, step in zip(extra, conv.stride, strict=True))
    if not _is_padding(padding) or not is_end:
        return None
    return _Replacement(2, (replace(conv, padding=padding, output_padding=extra),))


def _plain_conv(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    """Replace a transposed convolution of stride 1 by a plain one, with its taps in reverse."""
    match chain:
        case [ConvTranspose3d(stride=(1, 1, 1), output_padding=(0, 0, 0)) as conv, *_]:
            padding = subtracted(conv.reach, ONES, conv.padding)
            if not _is_padding(padding):
                return None
            ends, each = (conv.in_channels, conv.out_channels), conv.groups
            taps = weights[conv.weight].reshape(
                each, ends[0] // each, ends[1] // each, *conv.kernel
            )
            forward = taps.swapaxes(1, 2)[..., ::-1, ::-1, ::-1]
            weight = f"{conv.weight}.forward"
            weights[weight] = forward.reshape(ends[1], ends[0] // each, *conv.kernel)
            sizes = ONES, padding, conv.dilation, each
            return _Replacement(1, (Conv3d(*ends, conv.kernel, weight, conv.bias, *sizes),))
        case _:
            return None


def _padded_conv(chain: list[Layer], _: _Weights) -> _Replacement | None:
    match chain:
        case [Conv3d(padding=(0, 0, 0)) as conv, Pad("zero", before, after), *_] if (
            before == after and _is_padding(before)
        ):
            return _Replacement(2, (replace(conv, padding=before),))
        case _:
            return None


def _filter_down(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    conv = chain[0]
    if not isinstance(conv, Conv3d) or conv.groups != conv.in_channels or conv.bias is not None:
        return None
    taps = conv.kernel[0]
    if conv.dilation != ONES or not 1 < taps <= _MOST_TAPS:
        return None
    length, mode, before, after = 1, "zero", conv.padding, conv.padding
    if len(chain) > 1 and isinstance(chain[1], Pad) and not any(conv.padding):
        length, mode, before, after = 2, chain[1].mode, chain[1].before, chain[1].after
    sampling = Downsample(taps, conv.stride, mode)
    is_filter = (sampling.before, sampling.after) == (before, after)
    if is_filter and np.array_equal(weights[conv.weight], sampling.weight(conv.in_channels)):
        return _Replacement(length, (sampling,))
    return None


def _filter_up(chain: list[Layer], weights: _Weights) -> _Replacement | None:
    """Replace doubling by the filter [1, 3, 3, 1] with replicated border: linear interpolation."""
    match chain:
        case [
            Crop((1, 1, 1), (1, 1, 1)),
            ConvTranspose3d(
                channels,
                kernel=(4, 4, 4),
                weight=weight,
                bias=None,
                stride=(2, 2, 2),
                padding=(2, 2, 2),
                output_padding=(0, 0, 0),
                dilation=(1, 1, 1),
                groups=groups,
            ),
            Pad("replicate", (1, 1, 1), (1, 1, 1)),
        ] if groups == channels:
            taps = weights[weight]
            gain = taps.sum() / (8 * channels)
            if not np.array_equal(taps, 8 * gain * _LINEAR.weight(channels)):
                return None
            doubled = Upsample("trilinear", TWOS)
            if gain == 1:
                return _Replacement(3, (doubled,))
            scale, shift = f"{weight}.gain", f"{weight}.none"
            weights[scale] = np.full(channels, gain, np.float32)
            weights[shift] = np.zeros(channels, np.float32)
            return _Replacement(3, (ChannelAffine(channels, scale, shift), doubled))
        case _:
            return None


_LINEAR = Downsample(4, TWOS, "zero")


_REWRITINGS: tuple[_Rewriting, ...] = (
    _joined_affines,
    _affine_norm,
    _joined_crops,
    _joined_pads,
    _filter_down,
    _filter_up,
    _cropped_transposed,
    _padded_transposed,
    _plain_conv,
    _padded_conv,
)
