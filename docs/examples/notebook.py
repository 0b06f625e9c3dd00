# %% [markdown]
# # Import, translate, evaluate and show
#
# Uses the scan and the checkpoint of `sample_data`. Open this file as a notebook in VS Code,
# PyCharm or Jupyter with jupytext, or run it anywhere in the clone:
# `python docs/examples/notebook.py`. It needs matplotlib and writes to `tutorial` in the clone.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import nibabel
import numpy as np

import cuda_cyclegan as cc

here = Path.cwd()
clone = next(folder for folder in (here, *here.parents) if (folder / "sample_data").is_dir())
sample = clone / "sample_data"
scan = sample / "scans" / "icbm152_2009_t1_2mm.nii.gz"
output = clone / "tutorial"
output.mkdir(exist_ok=True)

# %% [markdown]
# ## Import
#
# A checkpoint contains weights only. The card states what the training code did around the network;
# the reference, a patch and the training code's output for it, proves the import.

# %%
card = cc.CardDraft(
    source=("T1",),
    target=("T2-like",),
    axes="RAS",
    spacing=(2.0, 2.0, 2.0),
    patch=(48, 48, 48),
    intensity_in=cc.Percentiles(0, 99.9),
    intensity_out=cc.Window(0, 1000),
)
model = cc.import_checkpoint(
    sample / "training" / "latest_net_G_A.pth",
    output / "t1-to-t2-like.safetensors",
    card,
    reference=sample / "training" / "reference.npz",
    replace=True,
)
print(model.card.source, "to", model.card.target)

# %% [markdown]
# ## Translate
#
# The result has the grid of the scan, `values()` the unit of the target scans.

# %%
with cc.Translator(model, device="auto") as translator:
    result = translator.translate_file(scan)
cc.to_nibabel(result).to_filename(output / "t2-like.nii.gz")
print(result.shape, result.spacing)

# %% [markdown]
# ## Evaluate
#
# In the front of the brain, which training never saw. On the command line, `cuda-cyclegan evaluate`
# computes more metrics for whole folders.

# %%
with np.load(sample / "training" / "t2_like.npz") as arrays:
    truth = arrays["t2_like"] / 255 * 1000
held_out = truth > 0
held_out[:, :66] = False
error = result.values() - truth
print(f"MAE {np.abs(error[held_out]).mean():.0f} on a scale of 0 to 1000")

# %% [markdown]
# ## Show

# %%
source = nibabel.load(scan).get_fdata()
figure, panels = plt.subplots(1, 4, figsize=(12, 4), layout="constrained")
for panel, title, values, colours, low, high in (
    (panels[0], "T1", source, "gray", 0, np.percentile(source, 99.9)),
    (panels[1], "synthetic T2-like", result.values(), "gray", 0, 1000),
    (panels[2], "truth", truth, "gray", 0, 1000),
    (panels[3], "error", error, "RdBu_r", -500, 500),
):
    panel.imshow(values[:, :, 40].T, cmap=colours, origin="lower", vmin=low, vmax=high)
    panel.set_title(title)
    panel.axis("off")
figure.savefig(output / "notebook.png")
