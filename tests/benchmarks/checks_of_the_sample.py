"""Unfit scans that the checks of the demonstration pair find, and how well their figures predict
errors.

    python tests/benchmarks/checks_of_the_sample.py [--output FILE]

Pieces of 48 x 48 x 48 voxels whose centres lie in the part of the brain that training never saw,
each deformed, brightened unevenly and made noisy on its own: 24 that the pair is calibrated with,
24 others as they should be, and 24 that are spoilt in six ways, four strengths of each. All of it
by the command itself. One brain and one pair: the figures are of these, and of nothing else.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from scipy.stats import spearmanr

import cuda_cyclegan as cc
from cuda_cyclegan.engine.model.model_file import Model, load_model
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.pipelines.study.input_figures import deviations
from cuda_cyclegan.pipelines.study.statistics import foreground_level
from cuda_cyclegan.pipelines.study.translator import StudyTranslator

SAMPLE = Path(__file__).parents[2] / "sample_data"
BACK = str(SAMPLE / "model_back.safetensors")
sys.path.insert(0, str(SAMPLE / "training"))

from patches import CHANGES, HELD_OUT_FROM, Sampler, load  # noqa: E402, of the training

RESULT = Path(__file__).parent / "results" / "checks_of_the_sample.json"
COUNT, EDGE, SPACING, FULL_SCALE, FLIPS = 24, 48, 2.0, 1000, 8
REFERENCE_SEED, GOOD_SEED, SPOILT_SEED = 100, 200, 300
FALSE_ALARMS, ENOUGH = 1, 22
MARK_BEYOND = 4.0
"""Limit that the model is calibrated with here; by default a calibration marks nothing."""

OTHER_LIMITS = (1.5, 2.0, 3.0)

Array = Any


@dataclass(frozen=True)
class Piece:
    """A scan [i, j, k] and its truth, on [0, 1]. spoilt: how; "" if it is as it should be."""

    scan: Array
    truth: Array
    spacing: tuple[float, float, float] = (SPACING, SPACING, SPACING)
    spoilt: str = ""


def drawn(seed: int) -> Piece:
    """A held-out piece, and what it should become."""
    t1, t2 = load()
    sampler = Sampler(EDGE, 1, seed, torch.device("cpu"))
    points = sampler.points(t1.shape[2:], CHANGES, first_j=HELD_OUT_FROM)
    scan, truth = sampler.disturb(sampler.cut(t1, points), CHANGES), sampler.cut(t2, points)
    return Piece(scan.numpy()[0, 0], truth.numpy()[0, 0])


def noisy(piece: Piece, strength: int, seed: int) -> Piece:
    """Noise of a magnitude image, of a standard deviation of 6 to 18 % of the range."""
    deviation = (0.06, 0.1, 0.14, 0.18)[strength]
    real, imaginary = np.random.default_rng(seed).normal(0, deviation, (2, *piece.scan.shape))
    return replace(piece, scan=np.hypot(piece.scan + real, imaginary))


def ghosted(piece: Piece, strength: int, _: int) -> Piece:
    """Copies shifted by half the field of view along j, of 15 to 60 % of the brightness."""
    share = (0.15, 0.3, 0.45, 0.6)[strength]
    return replace(piece, scan=piece.scan + share * np.roll(piece.scan, EDGE // 2, axis=1))


def inverted(piece: Piece, strength: int, _: int) -> Piece:
    """Bright for dark: everywhere, or in the brain alone."""
    inside = piece.scan > 0 if strength % 2 else True
    return replace(piece, scan=np.where(inside, piece.scan.max() - piece.scan, piece.scan))


def without_a_slab(piece: Piece, strength: int, seed: int) -> Piece:
    """4 to 16 of 48 planes are empty."""
    planes, scan = (4, 8, 12, 16)[strength], piece.scan.copy()
    first = int(np.random.default_rng(seed).integers(8, EDGE - 8 - planes))
    scan[:, :, first : first + planes] = 0
    return replace(piece, scan=scan)


def of_another_contrast(piece: Piece, _strength: int, _seed: int) -> Piece:
    """The target's contrast where the source's should be."""
    return replace(piece, scan=piece.truth)


def of_wrong_spacing(piece: Piece, strength: int, _: int) -> Piece:
    """The header says 1.5 or 2 times the millimetres along k, twice; or the voxels themselves are
    so much larger than the header says, twice.
    """
    factor = (1.5, 2.0)[strength // 2]
    if strength % 2:
        return replace(piece, spacing=(SPACING, SPACING, SPACING * factor))
    kept = round(EDGE / factor)
    places = np.linspace(0, EDGE - 1, kept)
    low = np.floor(places).astype(int).clip(0, EDGE - 2)
    between = (places - low).astype(np.float32)

    def shrunk(values: Array) -> Array:
        return values[..., low] * (1 - between) + values[..., low + 1] * between

    return replace(piece, scan=shrunk(piece.scan), truth=shrunk(piece.truth))


WAYS: dict[str, Callable[[Piece, int, int], Piece]] = {
    "noise": noisy,
    "ghosting": ghosted,
    "inversion": inverted,
    "missing slab": without_a_slab,
    "other contrast": of_another_contrast,
    "wrong spacing": of_wrong_spacing,
}


def spoilt() -> Iterator[Piece]:
    seeds = iter(range(SPOILT_SEED, SPOILT_SEED + COUNT))
    for way, spoil in WAYS.items():
        for strength in range(COUNT // len(WAYS)):
            seed = next(seeds)
            yield replace(spoil(drawn(seed), strength, seed), spoilt=way)


def write(pieces: Sequence[Piece], folder: Path) -> None:
    folder.mkdir()
    for number, piece in enumerate(pieces):
        stored = np.round(np.clip(piece.scan, 0, None) * FULL_SCALE).astype(np.int16)
        image = nibabel.Nifti1Image(stored, np.diag([*piece.spacing, 1.0]))
        image.to_filename(folder / f"{number:02}.nii")


def calibrated(folder: Path) -> Path:
    """The model with what it expects, learnt from pieces that are used for nothing else."""
    write([drawn(REFERENCE_SEED + number) for number in range(COUNT)], folder / "reference")
    target = folder / "calibrated.safetensors"
    command = [sys.executable, "-m", "cuda_cyclegan", "model", "calibrate"]
    command += [str(SAMPLE / "model.safetensors"), "--cycle", BACK, "--output", str(target)]
    command += ["--scans", str(folder / "reference"), "--mark-beyond", str(MARK_BEYOND)]
    command += ["--device", "cpu"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return target


@dataclass(frozen=True)
class Measured:
    """Figures of a piece: how far input and cycle error lie from the reference set, in its standard
    deviations; what the program reported; and on [0, 1] the errors and the spread in the
    foreground.
    """

    spoilt: str
    input: float
    cycle: float
    noted: bool
    marked: bool
    cycle_error: float
    spread: float
    true_error: float


def measured(pieces: Sequence[Piece], name: str, model_file: Path, folder: Path) -> list[Measured]:
    write(pieces, folder / name)
    options = cc.TranslateOptions(spread=FLIPS, cycle_check=cc.CycleCheck(BACK))
    report = cc.translate_folder(
        folder / name, model_file, folder / f"{name}-made", device="cpu", options=options
    )
    model = load_model(model_file)
    return [
        of_a_study(piece, row, model) for piece, row in zip(pieces, report.studies, strict=True)
    ]


def of_a_study(piece: Piece, row: cc.StudyReport, model: Model) -> Measured:
    card = model.card
    assert card.cycle
    assert row.cycle
    assert row.spread
    made = nibabel.load(row.output).get_fdata() / FULL_SCALE
    inside = piece.truth > foreground_level(piece.truth)
    error = row.cycle.error / row.cycle.unit
    return Measured(
        spoilt=piece.spoilt,
        input=input_distance(row.source, model),
        cycle=(error - card.cycle.error.mean) / card.cycle.error.sd,
        noted=any("unlike" in note for note in row.notes),
        marked=row.cycle.is_marked,
        cycle_error=error / 2,
        spread=row.spread.deviation / FULL_SCALE,
        true_error=float(np.abs(made - piece.truth)[inside].mean()),
    )


def input_distance(path: Path, model: Model) -> float:
    """Standard deviations between the reference set and the figure that lies furthest from it."""
    options = cc.TranslateOptions(patch=model.card.patch, precision="fp32").resolved()
    translator = StudyTranslator(model, options)
    scans = translator.read(discover([path], None).studies[0])
    study = translator.prepare(scans, translator.plan(scans))
    assert model.card.expected
    return max(each.far for each in deviations(study.prepared.figures(), model.card.expected))


def area(good: Sequence[float], bad: Sequence[float]) -> float:
    """Return the area under the ROC curve: how often a spoilt piece scores above a good one; ties
    count half.
    """
    first, second = np.array(good)[:, None], np.array(bad)[None]
    return float((second > first).mean() + 0.5 * (second == first).mean())


def detection(
    good: Sequence[Measured], bad: Sequence[Measured], score: Callable[[Measured], float]
) -> dict[str, Any]:
    """Return the spoilt pieces that are found with the limit above all good ones but one."""
    limit = sorted(map(score, good))[-1 - FALSE_ALARMS]
    found = [piece for piece in bad if score(piece) > limit]
    return {
        "auroc": round(area([*map(score, good)], [*map(score, bad)]), 3),
        "found_at_one_false_alarm": len(found),
        "found_of_each": {way: sum(piece.spoilt == way for piece in found) for way in WAYS},
    }


def as_told(
    good: Sequence[Measured], bad: Sequence[Measured], is_told: Callable[[Measured], bool]
) -> dict[str, Any]:
    """Return the pieces that the program reports by its own limits."""
    return {
        "false_alarms": sum(map(is_told, good)),
        "found": sum(map(is_told, bad)),
        "found_of_each": {
            way: sum(is_told(piece) for piece in bad if piece.spoilt == way) for way in WAYS
        },
    }


def rho(pieces: Sequence[Measured], name: str) -> float:
    pairs = [(getattr(piece, name), piece.true_error) for piece in pieces]
    return round(float(spearmanr(*zip(*pairs, strict=True)).statistic), 3)


def figures(good: Sequence[Measured], bad: Sequence[Measured]) -> dict[str, Any]:
    return {
        "largest_z_of_a_good_piece": {
            name: round(max(getattr(piece, name) for piece in good), 2)
            for name in ("cycle", "input")
        },
        "cycle": detection(good, bad, lambda piece: piece.cycle),
        "input": detection(good, bad, lambda piece: piece.input),
        "both": detection(good, bad, lambda piece: max(piece.cycle, piece.input)),
        "noted_by_the_input_check": as_told(good, bad, lambda piece: piece.noted),
        f"marked_beyond_{MARK_BEYOND:g}_sd": as_told(good, bad, lambda piece: piece.marked),
        "noted_or_marked": as_told(good, bad, lambda piece: piece.marked or piece.noted),
        "would_be_marked": {
            f"beyond_{limit:g}_sd": as_told(good, bad, lambda piece, z=limit: piece.cycle > z)
            for limit in OTHER_LIMITS
        },
        "rho_with_the_true_error": {
            "good": {name: rho(good, name) for name in ("cycle_error", "spread")},
            "all": {name: rho([*good, *bad], name) for name in ("cycle_error", "spread")},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = calibrated(folder)
        good = [drawn(GOOD_SEED + number) for number in range(COUNT)]
        found = measured(good, "good", model, folder)
        unfit = measured([*spoilt()], "spoilt", model, folder)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "onnxruntime": version("onnxruntime"),
        "pieces_of_each": COUNT,
        "enough_at_one_false_alarm": ENOUGH,
        **figures(found, unfit),
        "pieces": [asdict(each) for each in (*found, *unfit)],
    }
    asked.output.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps({key: record[key] for key in record if key != "pieces"}, indent=2))


if __name__ == "__main__":
    main()
