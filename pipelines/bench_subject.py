"""What is measured: a model file's network, or one of a published kind with drawn weights."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..engine.architectures import ResNetSpec, Spec, build
from ..engine.graph import FloatArray, Graph, Network, Triple
from ..engine.model_file import load_model

_SEED = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A network by where it comes from, so that another process can make the same one.

    source: a model file, or the specification of a generator that nobody trained.
    """

    source: Path | Spec

    @property
    def name(self) -> str:
        """In words, for the user."""
        match self.source:
            case Path():
                return str(self.source)
            case ResNetSpec(width=width, blocks=blocks):
                return f"ResNet generator, ngf {width}, {blocks} blocks, drawn weights"
            case spec:
                return f"U-Net generator, ngf {spec.width}, {spec.levels} levels, drawn weights"

    def load(self) -> tuple[Network, Triple | None]:
        """The network, and the patch that it was trained for. Raises ModelFileError."""
        if isinstance(self.source, Path):
            model = load_model(self.source)
            return model.network, model.card.patch
        return drawn(build(self.source)), None


def drawn(graph: Graph) -> Network:
    """The graph with the same noise each time, which keeps the size of a signal (He et al. 2015).

    Zeros would run faster than any trained network does.
    """
    random = np.random.default_rng(_SEED)
    weights: dict[str, FloatArray] = {}
    for name, shape in graph.weight_shapes():
        if len(shape) == 5:
            # Of a transposed convolution the outputs come second; the smaller count is cautious.
            spread = np.sqrt(2 / (np.prod(shape) / max(shape[:2])))
            weights[name] = (random.standard_normal(shape) * spread).astype(np.float32)
        else:
            filling = 1.0 if name.endswith("scale") else 0.0
            weights[name] = np.full(shape, filling, np.float32)
    return Network(graph, weights)


def noise(channels: int, patch: Triple, batch: int) -> FloatArray:
    """Patches [batch, channels, D, H, W] in [-1, 1), the same ones each time."""
    drawn = np.random.default_rng(_SEED).random((batch, channels, *patch), np.float32)
    return 2 * drawn - 1
