"""Gain of the race of forms: each layer by its custom kernel and in its other forms, on one GPU.

    PYTHONPATH=tests python tests/benchmarks/form_losses.py [--seconds 240] [--result JSON]

ResNets, U-Nets and random networks are lowered for patches of 32 to 160 and batches of 1, 2 and 4
in fp16. Each distinct layer that has several forms is timed in each of them, as opening a network
does: by custom kernels of inner layers and of layers to few channels, and by cuDNN. Shown by kernel
of the usual form, or cuDNN: how many layers there are, how many are faster in another form, how
many by more than 5 %, and what the worst loses; then the same for what `pays` decides, as whole
volumes do. Stops after the seconds.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from random import Random
from time import monotonic

from support.gpu_networks import chain, random_network
from support.random_graphs import random_graph

from cuda_cyclegan.engine.compiler.kernels.table import kernel_of
from cuda_cyclegan.engine.compiler.program.fitting import ProgramRequest
from cuda_cyclegan.engine.compiler.program.forms import compared
from cuda_cyclegan.engine.compiler.program.fusion import fused
from cuda_cyclegan.engine.compiler.program.lowering import lower
from cuda_cyclegan.engine.compiler.steps import Conv
from cuda_cyclegan.engine.cuda.open_gpu import CudaOptions, open_gpu
from cuda_cyclegan.engine.cuda.tuning.cache import CUSTOM_FORM, Candidate, TuningCache, form_key
from cuda_cyclegan.engine.cuda.tuning.tuner import Tuner
from cuda_cyclegan.engine.errors import DeviceMemoryError
from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph import Graph, Network
from cuda_cyclegan.engine.network.layers import (
    Conv3d,
    ConvTranspose3d,
    InstanceNorm,
    Layer,
    LeakyRelu,
    Triple,
)
from cuda_cyclegan.engine.options import SearchSettings

RESULT = Path(__file__).parent / "results" / "form_losses.json"
PATCHES = (64, 128, 96, 32, 160)
WIDTHS = (32, 64, 16)
MUCH = 0.05
WORST = 25
"""Layers that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A layer. own, other: microseconds of its usual form and of its fastest other form.

    kernel: the custom kernel of the usual form, or cuDNN.
    """

    kernel: str
    layer: str
    network: str
    pays: bool
    own: float
    other: float
    form: str

    @property
    def loss(self) -> float:
        """Share by which the usual form takes longer than the fastest form."""
        return self.own / min(self.own, self.other) - 1

    @property
    def loss_by_pays(self) -> float:
        """Share by which the form that `pays` decides takes longer than the fastest."""
        return (self.own if self.pays else self.other) / min(self.own, self.other) - 1


def plain(width: int, levels: int) -> Graph:
    """Convolutions of a U-Net without its skips: two of 3^3 a level."""
    layers: list[Layer] = []

    def add(layer: Layer, channels: int) -> None:
        layers.extend((layer, InstanceNorm(channels), LeakyRelu(0.01)))

    channels, one, two, three = 1, (1, 1, 1), (2, 2, 2), (3, 3, 3)
    for level in range(levels):
        wider = width << level
        stride = two if level else one
        add(Conv3d(channels, wider, three, f"down{level}", stride=stride, padding=one), wider)
        add(Conv3d(wider, wider, three, f"more{level}", padding=one), wider)
        channels = wider
    for level in reversed(range(levels - 1)):
        wider = width << level
        add(ConvTranspose3d(channels, wider, three, f"up{level}", None, two, one, one), wider)
        add(Conv3d(wider, wider, three, f"again{level}", padding=one), wider)
        channels = wider
    layers.append(Conv3d(channels, 1, one, "last"))
    return chain(1, *((f"{number}", layer) for number, layer in enumerate(layers)))


def cases() -> Iterator[tuple[str, Network, Triple, int]]:
    """Yield networks with a patch and a batch, in turn usual and random ones."""
    random = Random(0)
    for batch, extent in product((1, 4, 2), PATCHES):
        for patch in ((extent, extent, extent), (extent // 2, extent, extent * 3 // 4 // 8 * 8)):
            for width in WIDTHS:
                for kind, graph in (
                    ("U-Net", plain(width, 3)),
                    ("ResNet", build(ResNetSpec(1, 1, width, 1))),
                ):
                    yield (
                        f"{kind} {width}, {patch}, {batch}",
                        random_network(graph, 0),
                        patch,
                        batch,
                    )
        patch = (extent, extent, extent)
        for number in range(6):
            graph = random_graph(
                random, patch, numbers=64 * extent**3, weights=2_000_000, channels=(16, 32, 64, 128)
            )
            if graph is not None:
                yield f"random {number}, {extent}, {batch}", random_network(graph, 0), patch, batch


def timed_layers(seconds: float) -> tuple[str, int, list[Timed]]:
    """Return the GPU's name, how many networks were lowered, and their distinct layers."""
    until = monotonic() + seconds
    found: dict[str, Timed] = {}
    networks = 0
    with open_gpu(CudaOptions("fp16")) as (gpu, budget):
        settings = SearchSettings("quick")
        tuner = Tuner(gpu, TuningCache(None, gpu.identity), budget.bytes, settings)
        for name, network, patch, batch in cases():
            if monotonic() > until:
                break
            networks += 1
            wanted = ProgramRequest(patch, batch, "fp16", gpu.context.properties)
            lowered = lower(network, wanted.fastest, wanted.gpu)
            lowered = replace(lowered, steps=fused(lowered.steps, wanted.gpu))
            for step in compared(lowered):
                if form_key(step) not in found and monotonic() < until:
                    with suppress(DeviceMemoryError):
                        timed = [*tuner._timed_forms(network, lowered, step)]
                        if len(timed) > 1:
                            found[form_key(step)] = _row(step, name, timed)
        return gpu.context.name, networks, list(found.values())


def _row(step: Conv, network: str, timed: list[Candidate]) -> Timed:
    own, *others = timed
    assert own.name == CUSTOM_FORM
    best = min(others, key=lambda one: one.microseconds)
    return Timed(
        kernel=step.kernel or "cuDNN",
        layer=form_key(step),
        network=network,
        pays=kernel_of(step).pays(step),
        own=round(own.microseconds, 1),
        other=round(best.microseconds, 1),
        form=best.name,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--result", type=Path, default=RESULT)
    asked = parser.parse_args()
    gpu, networks, rows = timed_layers(asked.seconds)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": gpu,
        "networks": networks,
        "layers": [asdict(row) for row in rows],
    }
    asked.result.write_text(json.dumps(record) + "\n")
    print(f"{gpu}: {networks} networks, {len(rows)} layers")
    kernels: dict[str, list[Timed]] = defaultdict(list)
    for row in rows:
        kernels[row.kernel].append(row)
    for kernel, some in kernels.items():
        print(f"{kernel}, always: {_summary([row.loss for row in some])}")
        print(f"{kernel}, if it pays: {_summary([row.loss_by_pays for row in some])}")
    for row in sorted(rows, key=lambda row: -row.loss)[:WORST]:
        print(
            f"{row.loss:.0%}: {row.own} us, {row.form} {row.other} us, {row.layer}, {row.network}"
        )


def _summary(losses: list[float]) -> str:
    slower, much = (sum(loss > least for loss in losses) for least in (0, MUCH))
    return (
        f"{len(losses)} layers, {slower} faster in another form, {much} by more than {MUCH:.0%}, "
        f"the worst by {max(losses):.0%}"
    )


if __name__ == "__main__":
    main()
