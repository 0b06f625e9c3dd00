"""Coverage of all networks by those of the default tier."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, get_args

from msgspec import Struct, structs
from support.covering_networks import COVERING_GRAPHS, MIXED, graph_features
from support.gpu_networks import ODD_GRAPHS
from support.network_features import FEATURES

from cuda_cyclegan.engine.network.architectures import Groups, Spec, build, out_of_bounds
from cuda_cyclegan.engine.network.layers import Layer, Relu

INNER_PADDINGS = {"block_padding": None, "down_padding": "zero", "up_padding": None}
"""Usual paddings; all others count as one."""
MAIN = {
    "family",
    "norm",
    "norm_epsilon",
    "padding",
    "upsampling",
    "activation",
    "up_activation",
    "end",
    "stride",
}


def features(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Fields of a generator with their values, those alike in both families by one name."""
    yield "family", type(spec).__name__
    for field, value in structs.asdict(spec).items():
        match field, value:
            case (("width" | "blocks" | "downsamplings"), _):
                pass
            case "down_activation", _:
                yield "activation", value
            case "up_activation", Relu():
                yield field, None
            case _:
                yield field, value


def pairs(spec: Spec) -> Iterator[Any]:
    """Pairs of its features, of which those with numbers count by their class."""
    return combinations(sorted(((f, kind(f, v)) for f, v in features(spec)), key=repr), 2)


def kind(field: str, value: Any) -> Any:
    if field in INNER_PADDINGS:
        return value == INNER_PADDINGS[field]
    return type(value).__name__ if isinstance(value, Struct) else value


def test_mixed_generators_have_every_value_that_single_features_have() -> None:
    mixed = {repr(feature) for spec in MIXED.values() for feature in features(spec)}
    single = {repr(feature) for spec in FEATURES.values() for feature in features(spec)}
    assert single - mixed == {repr(("norm", Groups(8)))}  # MIXED have them without scale


def test_mixed_generators_have_every_pair_that_single_features_have() -> None:
    mixed = {pair for spec in MIXED.values() for pair in pairs(spec)}
    assert {pair for spec in FEATURES.values() for pair in pairs(spec)} <= mixed


def test_mixed_generators_have_any_two_of_the_main_features_together() -> None:
    mixed = {pair for spec in MIXED.values() for pair in pairs(spec)}
    single = {feature for spec in FEATURES.values() for pair in pairs(spec) for feature in pair}
    main = sorted((feature for feature in single if feature[0] in MAIN), key=repr)
    assert {pair for pair in combinations(main, 2) if len({*dict(pair)}) == 2} <= mixed


def test_mixed_generators_are_some_thirty_that_can_be() -> None:
    assert len(MIXED) <= 36
    for spec in MIXED.values():
        assert not list(out_of_bounds(spec))
        build(spec).check_patch((16, 16, 24))


def test_every_kind_of_layer_is_in_a_network_of_the_tests() -> None:
    graphs = [*ODD_GRAPHS.values(), *map(build, MIXED.values())]
    found = {type(node.layer) for graph in graphs for node in graph.nodes}
    assert {*get_args(Layer)} - found == set()


def test_chosen_graphs_have_all_kinds_of_layers_and_neighbours() -> None:
    found = {name: graph_features(graph) for name, graph in ODD_GRAPHS.items()}
    chosen = frozenset[str]().union(*(found[name] for name in COVERING_GRAPHS))
    assert frozenset[str]().union(*found.values()) == chosen
    assert len(COVERING_GRAPHS) < 20
