"""Train a small generator in PyTorch, and make a model of it in one call.

    python docs/examples/train.py FOLDER [STEPS]

A stand-in for your training code: the generator learns the sample's T2-like contrast from paired
patches, so that a minute is enough. What matters is the end: `cc.from_torch` exports the module,
proves that the program computes the same, and writes a model file.
"""

import sys
from pathlib import Path

import nibabel
import numpy as np
import torch
from torch import nn

import cuda_cyclegan as cc

SAMPLE = Path(__file__).parents[2] / "sample_data"
SCAN = SAMPLE / "scans" / "icbm152_2009_t1_2mm.nii.gz"
EDGE = 32

folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 300
source = nibabel.load(SCAN).get_fdata(dtype=np.float32)
source = np.clip(source / np.percentile(source, 99.9), 0, 1) * 2 - 1
with np.load(SAMPLE / "training" / "t2_like.npz") as arrays:
    target = arrays["t2_like"].astype(np.float32) / 255 * 2 - 1

layers: list[nn.Module] = []
for inputs, outputs in ((1, 16), (16, 16), (16, 16)):
    layers += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.InstanceNorm3d(outputs), nn.ReLU()]
generator = nn.Sequential(*layers, nn.Conv3d(16, 1, 3, padding=1), nn.Tanh())

optimiser = torch.optim.Adam(generator.parameters(), 2e-3)
places = np.random.default_rng(0)
for _ in range(steps):
    i, j, k = (int(places.integers(extent - EDGE + 1)) for extent in source.shape)
    window = slice(i, i + EDGE), slice(j, j + EDGE), slice(k, k + EDGE)
    patch, wanted = (torch.from_numpy(volume[window])[None, None] for volume in (source, target))
    loss = nn.functional.l1_loss(generator(patch), wanted)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"last loss {loss.item():.3f}")

folder.mkdir(parents=True, exist_ok=True)
model = cc.from_torch(
    generator.eval(),
    patch,  # proves the model: the program must compute what the module computes for it
    folder / "trained.safetensors",
    cc.CardDraft(
        source=("T1",),
        target=("T2-like",),
        axes="RAS",
        spacing=(2.0, 2.0, 2.0),
        intensity_in=cc.Percentiles(0, 99.9),
        intensity_out=cc.Window(0, 1000),
    ),
    replace=True,
)
print(model.card.source, "to", model.card.target)
