"""Cards, volumes and cheap generators for the tests of preparation, layout and blending."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuda_cyclegan.engine.generator import AnyGenerator, PatchGenerator, SharedGenerator
from cuda_cyclegan.engine.model.intensity_maps import Identity
from cuda_cyclegan.engine.model.model_card import ModelCard, Provenance, Reference
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import FloatArray, Relu, Triple
from cuda_cyclegan.engine.options import Blend
from cuda_cyclegan.engine.patch_grid import PatchPadding
from cuda_cyclegan.engine.scaling import Stored
from cuda_cyclegan.io.volume import Empty, Volume
from cuda_cyclegan.pipelines.settings import ResolvedOptions, TranslateOptions
from cuda_cyclegan.pipelines.stopwatch import Stopwatch
from cuda_cyclegan.pipelines.study.inference import SlidingWindow, translate_array
from cuda_cyclegan.pipelines.study.patches import PatchLayout
from cuda_cyclegan.pipelines.study.plan import plan_study
from cuda_cyclegan.pipelines.study.prepare import Prepared, prepare

OPTIONS = TranslateOptions((8, 8, 8), precision="fp32").resolved()
CARD = ModelCard(
    name="stand-in",
    architecture=ResNetSpec(1, 1, 8, 1),
    source="T1",
    target="T2",
    input_channels=("T1",),
    output_channels=("T2",),
    axes="RAS",
    spacing=None,
    patch=(32, 32, 32),
    intensity_in=Identity(),
    intensity_out=Identity(),
    small_volume_padding="edge",
    provenance=Provenance("none", "", "none", "test"),
    reference=Reference("", "", "cuda-cyclegan"),
)


def card(**changes: Any) -> ModelCard:
    """The stand-in card with some fields changed."""
    return replace(CARD, **changes)


def volume(
    voxels: np.ndarray[Any, Any],
    affine: np.ndarray[Any, Any] | None = None,
    slope: float = 1.0,
    intercept: float = 0.0,
) -> Volume:
    """A volume around an array, at 1 mm in RAS unless an affine says otherwise."""
    return Volume(voxels, np.eye(4) if affine is None else affine, None, "nifti", slope, intercept)


_GRAPH = Graph(1, (Node("relu", Relu(), (INPUT,)),))


@dataclass(frozen=True)
class FunctionGenerator:
    """Any function of patches [N, C, D, H, W] as a generator."""

    function: Callable[[FloatArray], FloatArray] = lambda patches: patches
    graph: Graph = _GRAPH
    device: str = "numpy"

    def __call__(self, patches: FloatArray) -> FloatArray:
        return self.function(patches)


def translated(
    array: FloatArray,
    generator: PatchGenerator,
    layout: PatchLayout,
    blend: Blend = "gaussian",
    padding: PatchPadding = "edge",
) -> FloatArray:
    """An array [C, D, H, W] through a generator, patch by patch."""
    return through(array, generator, SlidingWindow(layout, blend, padding))


def shared(generator: AnyGenerator) -> SharedGenerator:
    """The generator as threads share it, in any precision."""
    return SharedGenerator(lambda _: nullcontext(generator), (), ExitStack())


def through(
    array: FloatArray,
    generator: PatchGenerator,
    window: SlidingWindow,
    on_patches: Callable[[int], object] = lambda _: None,
    timer: Stopwatch | None = None,
) -> FloatArray:
    """An array [C, D, H, W] of network intensity through a generator; it lies as the array does."""
    output = np.empty_like(array, shape=(generator.graph.out_channels, *array.shape[1:]))
    timer = timer or Stopwatch()
    translate_array(Stored(array), Stored(output), generator, window, timer, on_patches)
    return output


def small_resnet() -> Network:
    """A ResNet generator of random weights; its instance norms see the whole patch."""
    return small_network(build(CARD.architecture))


def small_network(graph: Graph) -> Network:
    """Any graph with random weights."""
    random = np.random.default_rng(3)
    return Network(
        graph,
        {
            name: random.normal(0, 1 / np.sqrt(np.prod(shape[1:])), shape).astype(np.float32)
            for name, shape in graph.weight_shapes()
        },
    )


def prepared_scan(
    study: Volume | Sequence[Volume],
    of: ModelCard,
    empty: Empty = np.empty,
    options: ResolvedOptions = OPTIONS,
    stride: Triple = (1, 1, 1),
    *,
    in_network: bool = False,
) -> Prepared:
    """A scan, or several of one study, planned and prepared."""
    volumes = [study] if isinstance(study, Volume) else study
    plan = plan_study(volumes, of, options, stride, in_network=in_network)
    return prepare(volumes, plan, of, empty)
