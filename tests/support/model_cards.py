"""Models for the tests of model files: a tiny one, and hypothesis strategies for any card."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from cuda_cyclegan.engine.model.intensity_maps import (
    ChannelMaps,
    ClipPercentiles,
    ClipValues,
    GammaCurve,
    Identity,
    Logarithm,
    MinMax,
    Percentiles,
    SampleZScore,
    Standard,
    Steps,
    Window,
    ZScore,
)
from cuda_cyclegan.engine.model.model_card import ModelCard, Provenance, Reference
from cuda_cyclegan.engine.model.model_file import encode_model
from cuda_cyclegan.engine.model.reference import array_sha256, make_reference
from cuda_cyclegan.engine.network.architectures import (
    Blur,
    Groups,
    ResNetSpec,
    Spec,
    UNetSpec,
    build,
)
from cuda_cyclegan.engine.network.graph import Network
from cuda_cyclegan.engine.network.layers import Constant, Elu, FloatArray, LeakyRelu, Relu

SPEC = ResNetSpec(1, 1, width=2, blocks=1, downsamplings=1)
CARD = ModelCard(
    name="T1 to T2",
    architecture=SPEC,
    source="T1",
    target="T2",
    input_channels=("T1",),
    output_channels=("T2",),
    axes="RAS",
    spacing=(1.0, 1.0, 1.5),
    patch=(16, 16, 16),
    intensity_in=Percentiles(0.5, 99.5),
    intensity_out=Window(0.0, 1000.0),
    small_volume_padding="edge",
    provenance=Provenance("G.pth", "0" * 64, "numbered ResNet (model.N)", "cuda-cyclegan 0"),
    reference=Reference("0" * 64, "0" * 64, "cuda-cyclegan"),
)


def random_network(spec: Spec = SPEC, seed: int = 0) -> Network:
    """A generator with small random weights."""
    random = np.random.default_rng(seed)
    graph = build(spec)
    weights = {
        name: random.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in graph.weight_shapes()
    }
    return Network(graph, weights)


def model_parts(spec: Spec = SPEC) -> tuple[ModelCard, Network, FloatArray, FloatArray]:
    """Return what encode_model takes, with a reference made by the CPU."""
    network = random_network(spec)
    pair = make_reference(network)
    hashes = (array_sha256(array) for array in pair)
    card = replace(
        CARD,
        architecture=spec,
        input_channels=tuple(f"in{index}" for index in range(spec.in_channels)),
        reference=Reference(*hashes, "cuda-cyclegan"),
    )
    return card, network, *pair


def model_bytes() -> bytes:
    """A sound model file."""
    return encode_model(*model_parts())


_NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
_NUMBERS = st.floats(-1e6, 1e6)
_PADS = st.sampled_from(["reflect", "replicate", "zero", Constant(0.0), Constant(-1.0)])
_NORMS = st.sampled_from(
    ["instance", "instance_affine", "stored", "none", Groups(1), Groups(2, affine=False)]
)
_RECTIFIERS = st.one_of(
    st.just(Relu()), st.builds(LeakyRelu, st.floats(-10, 10)), st.builds(Elu, st.floats(0, 10))
)
_WIDTHS = st.integers(1, 4).map(lambda half: 2 * half)
_STRIDES = st.sampled_from([(2, 2, 2), (1, 2, 2)])
_ENDS = st.sampled_from(["tanh", "sigmoid", "none"])
_UPSAMPLINGS = st.sampled_from(
    ["transposed", "nearest", "trilinear", "trilinear_corners", "trilinear_zeros"]
)
_HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)

SPECS: st.SearchStrategy[Spec] = st.one_of(
    st.builds(
        ResNetSpec,
        in_channels=st.integers(1, 3),
        out_channels=st.integers(1, 3),
        width=_WIDTHS,
        blocks=st.integers(0, 9),
        downsamplings=st.integers(0, 3),
        padding=_PADS,
        down_padding=st.just("zero"),
        norm=_NORMS,
        upsampling=_UPSAMPLINGS,
        norm_bias=st.booleans(),
        up_bias=st.booleans(),
        last_bias=st.booleans(),
        first_kernel=st.sampled_from([3, 5, 7]),
        last_kernel=st.sampled_from([3, 5, 7]),
        end=_ENDS,
        block_padding=st.none() | _PADS,
        up_padding=st.none() | _PADS,
        activation=_RECTIFIERS,
        block_activation=st.none() | _RECTIFIERS,
        up_activation=st.none() | _RECTIFIERS,
        residual=st.sampled_from(["sum", "activated_sum", "none"]),
        norm_epsilon=st.floats(1e-12, 1),
        stride=_STRIDES,
        block_dilation=st.integers(1, 2),
        blur=st.none() | st.builds(Blur, st.integers(1, 5), _PADS),
    ),
    st.builds(
        UNetSpec,
        in_channels=st.integers(1, 3),
        out_channels=st.integers(1, 3),
        width=_WIDTHS,
        levels=st.integers(1, 5),
        norm=_NORMS,
        upsampling=st.just("transposed"),
        skip_first=st.booleans(),
        inner_bias=st.booleans(),
        end=_ENDS,
        padding=_PADS,
        down_activation=_RECTIFIERS,
        up_activation=_RECTIFIERS,
        norm_epsilon=st.floats(1e-12, 1),
        stride=_STRIDES,
    ),
)


def _apart(low: float, high: float, least: float) -> st.SearchStrategy[tuple[float, float]]:
    """Two numbers in order, which float32 voxels between them can tell apart."""
    pairs = st.tuples(st.floats(low, high), st.floats(low, high))
    return pairs.map(lambda pair: (min(pair), max(pair))).filter(
        lambda pair: pair[1] - pair[0] >= least
    )


_LINEAR_MAPS = st.one_of(
    _apart(-1e6, 1e6, 1.0).map(lambda pair: Window(*pair)),
    _apart(0, 100, 0.01).map(lambda pair: Percentiles(*pair)),
    st.builds(ZScore, st.floats(1e-3, 1e3)),
    st.just(SampleZScore()),
    st.builds(Standard, _NUMBERS, st.floats(1.0, 1e6)),
    st.just(MinMax()),
)
_STEPS = st.one_of(
    _LINEAR_MAPS,
    _apart(-1e6, 1e6, 1.0).map(lambda pair: ClipValues(*pair)),
    _apart(0, 100, 0.01).map(lambda pair: ClipPercentiles(*pair)),
    st.builds(Logarithm, _NUMBERS),
    st.builds(GammaCurve, st.floats(0.01, 100)),
)
_CHAINS = st.lists(_STEPS, min_size=2, max_size=4).map(tuple)
INTENSITY_MAPS = st.one_of(
    _LINEAR_MAPS,
    st.just(Identity()),
    st.builds(Steps, _CHAINS),
    st.builds(
        Steps,
        _CHAINS,
        st.sampled_from(["nonzero", "positive", "above_mean", "filled"]),
        st.sampled_from(["mapped", "zero"]),
    ),
)


def _maps_of(channels: int) -> st.SearchStrategy[ChannelMaps]:
    """One for all, or one for each of several."""
    each = st.tuples(*[INTENSITY_MAPS] * channels)
    return INTENSITY_MAPS | each if channels > 1 else INTENSITY_MAPS


@st.composite
def cards(draw: st.DrawFn) -> ModelCard:
    """Any card that makes sense."""
    spec = draw(SPECS)
    names = st.lists(_NAMES, min_size=3, max_size=3, unique=True)
    edges = st.floats(1e-3, 1e3)
    return ModelCard(
        name=draw(_NAMES),
        architecture=spec,
        source=draw(_NAMES),
        target=draw(_NAMES),
        input_channels=tuple(draw(names)[: spec.in_channels]),
        output_channels=tuple(draw(names)[: spec.out_channels]),
        axes=draw(st.sampled_from(["RAS", "LPS", "SPL", "AIR"])),
        spacing=draw(st.none() | st.tuples(edges, edges, edges)),
        patch=draw(st.sampled_from([(64, 64, 64), (128, 96, 32)])),
        intensity_in=draw(_maps_of(spec.in_channels)),
        intensity_out=draw(_maps_of(spec.out_channels)),
        small_volume_padding=draw(st.sampled_from(["edge", "reflect", "minimum"])),
        provenance=Provenance(
            draw(_NAMES), draw(_HASHES), draw(_NAMES), draw(_NAMES), draw(_NAMES), draw(_NAMES)
        ),
        reference=Reference(
            draw(_HASHES), draw(_HASHES), draw(st.sampled_from(["training code", "cuda-cyclegan"]))
        ),
    )
