"""Write the ground truth of the sample scan as NIfTI: what its translation should look like.

    python docs/examples/ground_truth.py FOLDER

The sample's T2-like volume is computed from tissue maps; sample_data/README.md describes it.
"""

import sys
from pathlib import Path

import nibabel
import numpy as np

SAMPLE = Path(__file__).parents[2] / "sample_data"
SCAN = Path("scans") / "icbm152_2009_t1_2mm.nii.gz"
FULL_SCALE = 1000  # the model card maps the network's range to 0..1000

with np.load(SAMPLE / "training" / "t2_like.npz") as arrays:
    truth = arrays["t2_like"] / 255 * FULL_SCALE
affine = nibabel.load(SAMPLE / SCAN).affine
target = Path(sys.argv[1]) / SCAN
target.parent.mkdir(parents=True, exist_ok=True)
nibabel.Nifti1Image(truth.astype(np.int16), affine).to_filename(target)
