"""A note on series whose synthetic CT would not be axial, as treatment planning needs it."""

from dataclasses import replace

import numpy as np
import pytest
from support.model_cards import CARD

from cuda_cyclegan.engine.model.model_card import ModelCard
from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.study.prepare import fit_scans

TO_CT = replace(CARD, target="CT")


def turned(degrees: float, first: int, second: int) -> Volume:
    """A DICOM volume, turned in the plane of two axes of the patient."""
    affine = np.diag([-0.9, -1.1, 3.0, 1.0])
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.eye(4)
    turn[first, first] = turn[second, second] = cosine
    turn[first, second], turn[second, first] = -sine, sine
    voxels = np.random.default_rng(0).integers(0, 900, (8, 9, 10)).astype(np.int16)
    return Volume(voxels, turn @ affine, None, "dicom")


def notes(volume: Volume, card: ModelCard = TO_CT) -> list[str]:
    found = fit_scans([volume], card).notes
    return [note for note in found if "not axial" in note]


@pytest.mark.parametrize(
    ("degrees", "axes"), [(90, (0, 2)), (90, (1, 2)), (3.2, (1, 2)), (0.5, (0, 1))]
)
def test_slices_that_are_not_axial_are_noted(degrees: float, axes: tuple[int, int]) -> None:
    [note] = notes(turned(degrees, *axes))
    assert f"turned by {degrees:.1f} degrees" in note
    assert "docs/radiotherapy.md" in note


def test_axial_slices_files_and_other_targets_are_not() -> None:
    assert notes(turned(0, 0, 1)) == notes(turned(180, 0, 2)) == []
    assert notes(turned(90, 0, 2), CARD) == []
    assert notes(replace(turned(90, 0, 2), format="nifti")) == []
