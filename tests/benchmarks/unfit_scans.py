"""Scans that do not suit a model, and how many of them `plan` notes with and without a calibration.

    python tests/benchmarks/unfit_scans.py [--head T1] [--honest 30] [--to FILE]

Twenty heads calibrate the demonstration model, others are as they should be, and 19 are spoilt or
of another kind, one of each. All are made from the sample's head, or from the T1 of another one.
Also noted: the T1 and not the CT of a head, by the same model as one of CT.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from scipy import ndimage

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.planted_results import SAMPLE, Image, cohorts_of

from cuda_cyclegan.engine.model.intensity_maps import Window
from cuda_cyclegan.engine.model.model_file import encode_model, load_model
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.decisions import with_inference
from cuda_cyclegan.pipelines.settings import TranslateOptions
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

MODEL = Path(__file__).parents[2] / "sample_data" / "model.safetensors"
REFERENCE, COUNT, UNFIT, MM = 5000, 20, 900, 2.0
"""First seed of the reference set, its size, first seed of unfit scans, and their spacing."""

Random = np.random.Generator


def _metal(x: Image, _: Random) -> Image:
    far = ndimage.distance_transform_edt(~_at(x, (0.5, 0.6, 0.5)))
    return np.where(far < 9, 0, np.where(far < 11, 2 * x.max(), x))


def _at(x: Image, shares: tuple[float, float, float]) -> Any:
    found = np.zeros(x.shape, bool)
    found[tuple(int(share * extent) for share, extent in zip(shares, x.shape, strict=True))] = True
    return found


def _hounsfield(x: Image, _: Random) -> Image:
    body = x > 60
    skull = ndimage.binary_dilation(body, iterations=4) & ~body
    return np.where(skull, 1100, np.where(body, 30 + x / 60, -1000))


def _enhanced(x: Image, random: Random) -> Image:
    places = ndimage.gaussian_filter(random.standard_normal(x.shape), 2)
    return np.where((places > np.percentile(places, 96)) & (x > 100), 2.2 * x, x)


def _child(x: Image, _: Random) -> Image:
    middle = (np.array(x.shape) - 1) / 2
    return ndimage.affine_transform(x, np.eye(3) / 0.72, middle - middle / 0.72, order=1)


def _knee(_: Image, random: Random) -> Image:
    i, j, k = np.indices((80, 80, 80))
    off = np.hypot(i - 40, j - 40)
    made = np.where(off < 30, 300.0, 0.0)
    made[(off < 14) & (np.abs(k - 40) > 3)] = 700
    made[(off < 15) & (np.abs(k - 40) <= 3)] = 120
    return np.clip(made + random.standard_normal(made.shape) * 8 * (made > 0), 0, None)


def _along(x: Image, axis: int) -> Any:
    shape = [1, 1, 1]
    shape[axis] = -1
    return (np.arange(x.shape[axis]) / x.shape[axis]).reshape(shape)


SPOILT: dict[str, Callable[[Image, Random], Image]] = {
    "flipped along S-I": lambda x, _: x[:, :, ::-1],
    "flipped along A-P": lambda x, _: x[:, ::-1],
    "flipped along L-R": lambda x, _: x[::-1],
    "axes exchanged": lambda x, _: x.transpose(0, 2, 1),
    "spacing doubled": lambda x, _: x,
    "spacing halved": lambda x, _: x,
    "lower 40 % missing": lambda x, _: x[:, :, int(0.4 * x.shape[2]) :],
    "metal": _metal,
    "motion": lambda x, _: 0.55 * x + 0.25 * np.roll(x, 12, 1) + 0.2 * np.roll(x, -12, 1),
    "noise": lambda x, r: np.abs(x + r.standard_normal(x.shape) * 200),
    "slab missing": lambda x, _: np.where(np.abs(_along(x, 2) - 0.45) < 0.075, 0, x),
    "inverted": lambda x, _: np.where(x > 0, x.max() - x, x),
    "CT in HU": _hounsfield,
    "contrast agent": _enhanced,
    "child": _child,
    "knee": _knee,
    "thick slices": lambda x, _: ndimage.zoom(x, (1, 1, 0.4), order=1),
    "T2": lambda x, _: np.where(x > 60, np.clip(1100 - x, 50, None), 0),
    "defaced": lambda x, _: np.where(_along(x, 1) > 0.78, 0, x),
}
"""Each with one fault, or of another kind than the model's scans."""

SPACINGS = {
    "spacing doubled": (2 * MM,) * 3,
    "spacing halved": (MM / 2,) * 3,
    "thick slices": (MM, MM, 2.5 * MM),
}


def store(path: Path, voxels: Image, spacing: tuple[float, ...] = (MM, MM, MM)) -> None:
    """Write voxels along R, A and S as whole numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = np.round(voxels).astype(np.int16)
    nibabel.Nifti1Image(stored, np.diag([*spacing, 1.0])).to_filename(path)


def noted(scans: Path, file: Path) -> dict[str, list[str]]:
    """Notes of `plan` on how the voxels of each scan suit a model."""
    model = load_model(file)
    options = with_inference(model, TranslateOptions(precision="fp32")).resolved()
    translator, found = StudyTranslator(model, options), dict[str, list[str]]()
    for study in discover([scans], None).studies:
        read = translator.read(study)
        notes = translator.foresee(read, translator.plan(read))[1]
        found[str(study.name).removesuffix(".nii.gz")] = [*notes]
    return found


def of_ct(folder: Path) -> Path:
    """The model as one of CT."""
    model, path = load_model(MODEL), folder / "ct.safetensors"
    card = replace(
        model.card, source="CT", input_channels=("CT",), intensity_in=Window(-1000.0, 1000.0)
    )
    path.write_bytes(
        encode_model(card, model.network, model.reference_input, model.reference_output)
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", type=Path, default=SAMPLE)
    parser.add_argument("--honest", type=int, default=30)
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args()
    draw = cohorts_of(asked.head)["head T2"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(COUNT):
            store(folder / f"reference/{seed}.nii.gz", draw(REFERENCE + seed).scan)
        for seed in range(asked.honest):
            store(folder / f"scans/honest {seed}.nii.gz", draw(seed).scan)
        for seed, (kind, spoil) in enumerate(SPOILT.items(), UNFIT):
            spoilt = spoil(draw(seed).scan, np.random.default_rng(seed))
            store(folder / f"scans/{kind}.nii.gz", spoilt, SPACINGS.get(kind, (MM,) * 3))
        calibrated = folder / "calibrated.safetensors"
        command = [sys.executable, "-m", "cuda_cyclegan", "model", "calibrate", str(MODEL)]
        command += ["--scans", str(folder / "reference"), "--output", str(calibrated)]
        subprocess.run([*command, "--device", "cpu"], check=True, stdout=sys.stderr)
        found = {
            "without calibration": noted(folder / "scans", MODEL),
            "with calibration": noted(folder / "scans", calibrated),
        }
        store(folder / "to ct/T1.nii.gz", draw(UNFIT).scan)
        store(
            folder / "to ct/CT.nii.gz",
            _hounsfield(draw(UNFIT + 1).scan, np.random.default_rng(0)),
        )
        for_ct = noted(folder / "to ct", of_ct(folder))
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "unfit": len(SPOILT),
        "honest": asked.honest,
        **{
            label: {
                "unfit_noted": sum(bool(notes[kind]) for kind in SPOILT),
                "honest_noted": sum(bool(notes[f"honest {at}"]) for at in range(asked.honest)),
                "not_noted": [kind for kind in SPOILT if not notes[kind]],
            }
            for label, notes in found.items()
        },
        "model of CT": for_ct,
        "notes": {kind: {label: notes[kind] for label, notes in found.items()} for kind in SPOILT},
    }
    text = f"{json.dumps(record, indent=2)}\n"
    print(text)
    if asked.to:
        asked.to.write_text(text)


if __name__ == "__main__":
    main()
