"""A script for the user's training environment that computes a reference pair."""

REFERENCE_SCRIPT = '''\
"""Compute the reference patch that cuda-cyclegan checks an imported model against.

Copy this file beside your training code, edit the lines under EDIT, and run it there:
    python make_reference.py
It needs PyTorch and NumPy, runs on the CPU, and writes reference.npz. Then:
    cuda-cyclegan model import CHECKPOINT --reference reference.npz ...
"""

import numpy as np
import torch
import torch.nn.functional as F

# EDIT: build your generator and load its weights, exactly as your own test code does.
generator = build_generator()
generator.load_state_dict(torch.load("generator.pth", map_location="cpu"))

# EDIT: False if your test code does not call eval(), as much CycleGAN code does not; the
# normalisation then uses each patch's own statistics. (Dropout must be off either way.)
EVAL = True

# EDIT: channels of the input, and extents D, H, W that your network takes.
CHANNELS = 1
EXTENTS = (32, 32, 32)

torch.manual_seed(0)
coarse = torch.rand(1, CHANNELS, 4, 4, 4) * 2 - 1
smooth = F.interpolate(coarse, size=EXTENTS, mode="trilinear", align_corners=True)
noise = torch.rand(1, CHANNELS, *EXTENTS) * 2 - 1
patch = 0.75 * smooth + 0.25 * noise

generator = generator.float().cpu().train(not EVAL)
for module in generator.modules():
    if "Dropout" in type(module).__name__:
        module.eval()
with torch.no_grad():
    translated = generator(patch)

np.savez("reference.npz", input=patch.numpy(), output=translated.numpy())
print("reference.npz: input", tuple(patch.shape), "output", tuple(translated.shape))
'''
