"""Networks of the default tier, which have every pair of features.

The generators of `network_features` change one feature each and are many. `MIXED` change all of
them at once, so that thirty show what any two features do beside each other. Of `ODD_GRAPHS`,
`covering` keeps those that have all kinds of layers and all neighbours.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, cycle
from random import Random
from typing import Any, Literal, TypeAlias

import pytest
from msgspec import structs
from support.gpu_networks import ODD_GRAPHS
from support.network_features import FEATURES, RESNET, UNET

from cuda_cyclegan.engine.network.architectures import Blur, Groups, Spec
from cuda_cyclegan.engine.network.graph import INPUT, Graph
from cuda_cyclegan.engine.network.layers import (
    Add,
    ChannelAffine,
    Channels,
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
    Relu,
    Subtract,
    Upsample,
)

Family: TypeAlias = Literal["resnet", "unet"]
Level: TypeAlias = tuple[Any, ...]
"""Values of a field that count as one feature; the networks take them in turn."""
Row: TypeAlias = Mapping[str, int]
"""Number of the level of each field, and of the family."""
Pair: TypeAlias = tuple[tuple[str, int], tuple[str, int]]

_LEAKY: Level = (LeakyRelu(0.2), LeakyRelu(0.1), LeakyRelu(0.01))
_ELU: Level = (Elu(), Elu(0.3), Elu(0.5))
_SHARED: Mapping[str, Sequence[Level]] = {
    "norm": (
        ("instance",),
        ("instance_affine",),
        ("stored",),
        ("none",),
        (Groups(4), Groups(2, affine=False), Groups(1), Groups(2), Groups(8, affine=False)),
    ),
    "padding": (("reflect",), ("replicate",), ("zero",), (Constant(-1.0), Constant(0.5))),
    "upsampling": (
        ("transposed",),
        ("nearest",),
        ("trilinear",),
        ("trilinear_corners", "trilinear_zeros"),
    ),
    "activation": ((Relu(),), _LEAKY, _ELU),
    "up_activation": ((None,), _LEAKY, _ELU),
    "end": (("tanh",), ("sigmoid",), ("none",)),
    "channels": (((1, 1),), ((3, 3),), ((2, 3), (1, 2), (2, 1))),
    "norm_epsilon": ((1e-5,), (1e-1,)),
    "stride": (((2, 2, 2),), ((1, 2, 2),)),
    "adds_input": ((False,), (True,)),
}
_OWN: Mapping[Family, Mapping[str, Sequence[Level]]] = {
    "resnet": {
        "block_activation": ((None,), _LEAKY, _ELU),
        "block_padding": ((None,), ("replicate", "reflect", "zero")),
        "down_padding": (("zero",), (Constant(0.5), "replicate")),
        "up_padding": ((None,), ("zero", "reflect")),
        "residual": (("sum",), ("activated_sum",), ("none",)),
        "block_dilation": ((1,), (2,)),
        "blur": (
            (None,),
            (Blur(), Blur(4, "replicate"), Blur(5, "zero"), Blur(2, Constant(1.0))),
        ),
        "first_kernel": ((7,), (3,)),
        "last_kernel": ((7,), (3,)),
        "last_bias": ((True,), (False,)),
    },
    "unet": {"skip_first": ((True,), (False,)), "levels": ((3,), (2,))},
}
"""Fields of one family. Pairs of shared fields occur in either family."""
_FAMILIES: tuple[Family, ...] = "resnet", "unet"
_IMPOSSIBLE: Pair = ("adds_input", 1), ("channels", 2)
_SEED = 32
"""Seed that makes 31 rows; others make up to 45."""


def _levels(family: int) -> Mapping[str, Sequence[Level]]:
    return {**_SHARED, **_OWN[_FAMILIES[family]]}


def _possible_pairs() -> set[Pair]:
    covered: set[Pair] = set()
    for family in range(len(_FAMILIES)):
        levels = [("family", family)]
        for field, choices in _levels(family).items():
            levels += [(field, level) for level in range(len(choices))]
        covered.update(
            (one, other) for one, other in combinations(sorted(levels), 2) if one[0] != other[0]
        )
    return covered - {_IMPOSSIBLE}


def _covering_rows() -> Iterator[Row]:
    """Rows that have all possible pairs, each begun with one that is missing."""
    random, missing = Random(_SEED), _possible_pairs()
    while missing:
        row = _row(random, missing)
        missing.difference_update(combinations(sorted(row.items()), 2))
        yield row


def _row(random: Random, missing: set[Pair]) -> Row:
    """A row that takes, field by field, the level that adds most missing pairs."""
    row = dict(random.choice(sorted(missing)))
    if "family" not in row:
        row["family"] = random.choice(
            [family for family in range(len(_FAMILIES)) if row.keys() <= _levels(family).keys()]
        )
    fields = [*_levels(row["family"]).items()]
    random.shuffle(fields)
    for field, choices in fields:
        if field not in row:
            levels = random.sample(range(len(choices)), len(choices))
            pairs = {level: [_pair((field, level), old) for old in row.items()] for level in levels}
            row[field] = max(
                (level for level in levels if _IMPOSSIBLE not in pairs[level]),
                key=lambda level: len(missing.intersection(pairs[level])),
            )
    return row


def _pair(one: tuple[str, int], other: tuple[str, int]) -> Pair:
    return (one, other) if one < other else (other, one)


def _mixed() -> Iterator[tuple[str, Spec]]:
    turns = {
        field: [cycle(level) for level in choices]
        for fields in (_SHARED, *_OWN.values())
        for field, choices in fields.items()
    }
    for number, row in enumerate(_covering_rows()):
        family = _FAMILIES[row["family"]]
        facts = {field: next(turns[field][row[field]]) for field in _levels(row["family"])}
        facts["in_channels"], facts["out_channels"] = facts.pop("channels")
        if family == "unet":
            facts["down_activation"] = facts.pop("activation")
            facts["up_activation"] = facts["up_activation"] or Relu()
        yield f"{family} {number}", structs.replace(RESNET if family == "resnet" else UNET, **facts)


MIXED: Mapping[str, Spec] = dict(_mixed())
"""Generators that have every pair of features which a generator can have."""

SPECS: Mapping[str, Spec] = {**MIXED, **FEATURES}

_ROLES: Mapping[str, tuple[type[Layer], ...]] = {
    "convolution": (Conv3d,),
    "transposed": (ConvTranspose3d,),
    "norm": (InstanceNorm, GroupNorm, ChannelAffine),
    "extents": (Pad, Crop, Channels),
    "sampling": (Pool, Upsample, Downsample),
    "join": (Add, Subtract, Multiply, Concat),
}


def graph_features(graph: Graph) -> frozenset[str]:
    """Kinds of layers in a graph, and the roles of two of which one reads the other."""
    roles = {node.name: _role(node.layer) for node in graph.nodes} | {INPUT: INPUT}
    kinds = {_kind(node.layer) for node in graph.nodes}
    read = {f"{roles[name]} > {roles[node.name]}" for node in graph.nodes for name in node.inputs}
    return frozenset(kinds | read)


def _role(layer: Layer) -> str:
    return next((role for role, kinds in _ROLES.items() if isinstance(layer, kinds)), "activation")


def _kind(layer: Layer) -> str:
    """Return the layer's type and what makes it unusual."""
    said = [type(layer).__name__]
    if isinstance(layer, Pad | Pool | Upsample):
        said.append(str(layer.mode))
    if isinstance(layer, Conv3d | ConvTranspose3d):
        unusual = {
            "grouped": layer.groups > 1,
            "strided": max(layer.stride) > 1,
            "dilated": max(layer.dilation) > 1,
        }
        said += [word for word, is_so in unusual.items() if is_so]
    return " ".join(said)


def _covering_graphs() -> Iterator[str]:
    """Names of odd graphs, each that with most features which the ones before it lack."""
    features = {name: graph_features(graph) for name, graph in ODD_GRAPHS.items()}
    missing = frozenset[str]().union(*features.values())
    while missing:
        best = max(features, key=lambda name: len(features[name] & missing))
        missing -= features[best]
        yield best


COVERING_GRAPHS = frozenset(_covering_graphs())
"""Names of odd graphs that together have the features of all."""


def covering(names: Iterable[str]) -> list[Any]:
    """Names as parameters of a test, slow unless they are in MIXED or COVERING_GRAPHS."""
    kept = MIXED.keys() | COVERING_GRAPHS
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]
