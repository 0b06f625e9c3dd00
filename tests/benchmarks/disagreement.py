"""Correlation of an ensemble's disagreement with the true error, over honest and planted scans.

    python tests/benchmarks/disagreement.py [--members 4] [--steps 700] [--honest 30] [--each 3]

Small networks of other first weights and other patches each learn the T2 of the cohort "head T2"
of `support.planted_results` from the heads of seeds 0 to 11. `model combine --disagreement` joins
them, and translates the heads of seeds from 500000 on, whose T2 is known: as they are, and with one
of the faults of FAULTS in the scan. The error is the mean absolute one in the body, in percent of
the truth's range. Pearson's r has its 95 % interval by Fisher's transformation.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.planted_results import Image, head_t2

import cuda_cyclegan as cc
from cuda_cyclegan.engine.cores import usable_cores
from cuda_cyclegan.engine.model.intensity_maps import Percentiles, Window
from cuda_cyclegan.engine.model.model_card import ModelCard, Provenance, Reference
from cuda_cyclegan.engine.model.model_file import decode_model, encode_model
from cuda_cyclegan.engine.model.reference import array_sha256, make_reference
from cuda_cyclegan.engine.network.graph import INPUT, Graph, Network, Node
from cuda_cyclegan.engine.network.layers import Conv3d, Relu
from cuda_cyclegan.pipelines.model_import.combining import combined_model

RESULT = Path(__file__).parent / "results" / "disagreement.json"
TRAINING, FRESH = range(12), 500_000
"""Seeds of the heads that are learnt from, and first seed of the others."""

EDGE, BATCH, WIDTH, RATE = 20, 4, 8, 5e-3
PERCENTILES, TARGET = Percentiles(1.0, 99.5), Window(0.0, 1100.0)
_THREE, _ONE = (3, 3, 3), (1, 1, 1)

Fault = Callable[[Image, np.random.Generator], Image]


def _ball(scan: Image, random: np.random.Generator, share: float) -> Image:
    middle = [random.uniform(0.35, 0.65) * extent for extent in scan.shape]
    lines = zip(np.indices(scan.shape), middle, strict=True)
    inside = sum((line - at) ** 2 for line, at in lines) < random.uniform(6, 14) ** 2
    return np.where(inside, share * scan.max(), scan)


def _ramp(scan: Image) -> Image:
    return np.linspace(-1, 1, scan.shape[1], dtype=np.float32)[:, None]


FAULTS: dict[str, Fault] = {
    "noise": lambda x, r: x + r.standard_normal(x.shape) * r.uniform(0.02, 0.15) * x.max(),
    "blur": lambda x, r: ndimage.gaussian_filter(x, r.uniform(0.7, 2)),
    "gamma": lambda x, r: x.max() * (x / x.max()) ** r.choice([0.5, 0.7, 1.5, 2.0]),
    "inverted": lambda x, _: np.where(x > 0.05 * x.max(), x.max() - x, x),
    "uneven": lambda x, r: x * np.exp(r.uniform(0.5, 1.5) * _ramp(x)),
    "bright ball": lambda x, r: _ball(x, r, 1.0),
    "dark ball": lambda x, r: _ball(x, r, 0.0),
    "thick slices": lambda x, _: np.repeat(x[:, :, ::4], 4, axis=2)[:, :, : x.shape[2]],
    "metal": lambda x, r: np.where(r.random(x.shape) < 2e-4, 20 * x.max(), x),
    "background": lambda x, r: x + r.uniform(0.05, 0.3) * x.max(),
}


def network_of(layers: nn.Sequential) -> Network:
    """The graph of a chain of convolutions and activations, with its weights."""
    nodes, weights, before = list[Node](), dict[str, Any](), INPUT
    for name, layer in layers.named_children():
        kind: Any = Relu()
        if isinstance(layer, nn.Conv3d):
            into, out = layer.in_channels, layer.out_channels
            kind = Conv3d(into, out, _THREE, f"{name}.weight", f"{name}.bias", padding=_ONE)
            weights |= {f"{name}.{key}": one.numpy() for key, one in layer.state_dict().items()}
        nodes.append(Node(f"layer.{name}", kind, (before,)))
        before = f"layer.{name}"
    return Network(Graph(1, tuple(nodes)), weights)


def scaled(scan: Image, low: float, high: float) -> Image:
    """An image of which two values become -1 and 1."""
    return (2 * (scan - low) / (high - low) - 1).astype(np.float32)


@cache
def lessons() -> list[tuple[Image, Image]]:
    """Scans and truths that are learnt from, on the network's scale."""
    return [
        (scaled(one.scan, *_ends(one.scan)), scaled(one.result, TARGET.low, TARGET.high))
        for one in map(head_t2, TRAINING)
    ]


def trained(seed: int, steps: int) -> nn.Sequential:
    """A network that learnt from patches of its own."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    layers = nn.Sequential(
        *(nn.Conv3d(1, WIDTH, 3, padding=1), nn.ReLU()),
        *(nn.Conv3d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()),
        *(nn.Conv3d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()),
        nn.Conv3d(WIDTH, 1, 3, padding=1),
    )
    pairs = lessons()
    optimiser = torch.optim.Adam(layers.parameters(), RATE)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - step / steps))
        batch = [_patch(pairs[random.integers(len(pairs))], random) for _ in range(BATCH)]
        scans, truths = (
            torch.from_numpy(np.stack(each)[:, None]) for each in zip(*batch, strict=True)
        )
        loss = functional.l1_loss(layers(scans), truths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return layers


def _ends(scan: Image) -> tuple[float, float]:
    low, high = np.percentile(scan, (PERCENTILES.low, PERCENTILES.high))
    return float(low), float(high)


def _patch(pair: tuple[Image, Image], random: np.random.Generator) -> tuple[Image, Image]:
    corner = [random.integers(extent - EDGE + 1) for extent in pair[0].shape]
    box = tuple(slice(at, at + EDGE) for at in corner)
    return pair[0][box].copy(), pair[1][box].copy()


def model_of(layers: nn.Sequential) -> Any:
    """A model file's content, decoded."""
    network = network_of(layers)
    patch, output = make_reference(network)
    card = ModelCard(
        name="T1 to T2",
        architecture=network.graph,
        source="T1",
        target="T2",
        input_channels=("T1",),
        output_channels=("T2",),
        axes="RAS",
        spacing=None,
        patch=(48, 48, 48),
        intensity_in=PERCENTILES,
        intensity_out=TARGET,
        small_volume_padding="edge",
        provenance=Provenance("none", "0" * 64, "none", "benchmark"),
        reference=Reference(array_sha256(patch), array_sha256(output), "cuda-cyclegan"),
    )
    return decode_model(encode_model(card, network, patch, output))


def heads(count: int, each: int, folder: Path) -> dict[str, Image]:
    """Store scans without a fault, and others with each; return the truth of each by its name."""
    truths = dict[str, Image]()
    names = [("honest", at) for at in range(count)] + [
        (kind, at) for kind in FAULTS for at in range(each)
    ]
    for number, (kind, at) in enumerate(names):
        pair, random = head_t2(FRESH + number), np.random.default_rng(FRESH + number)
        scan = FAULTS[kind](pair.scan, random) if kind in FAULTS else pair.scan
        name = f"{kind.replace(' ', '_')}_{at}_T1w.nii"
        image = nibabel.Nifti1Image(np.asarray(scan, np.float32), np.diag([2.0, 2.0, 2.0, 1.0]))
        nibabel.save(image, folder / name)
        truths[name] = pair.result
    return truths


def correlations(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Pearson's r with its 95 % interval, and Spearman's rho, of two figures of each study."""
    first, second = np.array(pairs).T
    ranks = [np.argsort(np.argsort(one, kind="stable")) for one in (first, second)]
    r, half = float(np.corrcoef(first, second)[0, 1]), 1.96 / np.sqrt(len(pairs) - 3)
    return {
        "studies": len(pairs),
        "r": round(r, 3),
        "r_from_to": [round(float(np.tanh(np.arctanh(r) + end)), 3) for end in (-half, half)],
        "rho": round(float(np.corrcoef(*ranks)[0, 1]), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--honest", type=int, default=30)
    parser.add_argument("--each", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # which does not wait for busy cores in every layer
    begin = time.perf_counter()
    models = [model_of(trained(seed, asked.steps)) for seed in range(asked.members)]
    seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as made:
        scans = Path(made) / "scans"
        scans.mkdir()
        truths = heads(asked.honest, asked.each, scans)
        file = Path(made) / "ensemble.safetensors"
        file.write_bytes(combined_model(models, disagreement=True).content)
        report = cc.translate_folder([scans], file, Path(made) / "results", device="cpu")
        studies = dict[str, Any]()
        for row in report.studies:
            truth, result = truths[row.name], nibabel.load(row.output).get_fdata()
            body = truth > 0.05 * truth.max()
            error = 100 * np.abs(result - truth)[body].mean() / np.ptp(truth)
            apart = row.measures and row.measures.disagreement
            studies[row.name] = (100 * (apart or 0.0) / np.ptp(truth), error)
    groups = {
        "all": [*studies],
        "without inverted": [name for name in studies if not name.startswith("inverted")],
        "honest": [name for name in studies if name.startswith("honest")],
        "planted": [name for name in studies if not name.startswith("honest")],
    }
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {usable_cores()} cores",
        "torch": torch.__version__,
        "onnxruntime": version("onnxruntime"),
        "members": asked.members,
        "seconds_of_training": round(seconds, 1),
        "steps": asked.steps,
        "seeds": {
            "training": [TRAINING[0], TRAINING[-1]],
            "members": [0, asked.members - 1],
            "heads": [FRESH, FRESH + len(truths) - 1],
        },
        **{
            label: correlations([studies[name] for name in names])
            for label, names in groups.items()
        },
        "disagreement and error, percent": {
            name: [round(float(each), 3) for each in pair] for name, pair in studies.items()
        },
    }
    RESULT.write_text(f"{json.dumps(found, indent=2)}\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
