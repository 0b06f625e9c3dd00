"""Properties of an object that keep it from being a slice of a volume."""

from typing import Any

import pydicom as _pydicom
import pytest

from cuda_cyclegan.io.dicom.object_types import blocker

pydicom: Any = _pydicom


def image(**elements: Any) -> Any:
    """An object that may be a slice but for these elements."""
    dataset = pydicom.Dataset()
    for name, value in {"Modality": "MR", "Rows": 4, "Columns": 4, **elements}.items():
        setattr(dataset, name, value)
    return dataset


BLOCKERS: dict[str, dict[str, Any]] = {
    "it is a segmentation": {"Modality": "SEG"},
    "it is a parametric map": {"SOPClassUID": pydicom.uid.ParametricMapStorage},
    "it contains no image": {"Rows": 0},
    "DX images are not slices of a volume": {"Modality": "DX"},
    "it is a localizer": {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]},
    "its slices are tiled into a mosaic; export the series as enhanced or single-slice images": {
        "ImageType": ["ORIGINAL", "PRIMARY", "MOSAIC"]
    },
    "it is a colour image": {"SamplesPerPixel": 3},
    "it is a colour image with a palette": {"PhotometricInterpretation": "PALETTE COLOR"},
    "it contains 1-bit masks": {"BitsAllocated": 1},
    "its values are mapped by a lookup table, which is not supported": {
        "ModalityLUTSequence": [pydicom.Dataset()]
    },
}


@pytest.mark.parametrize("reason", BLOCKERS)
def test_a_blocker_is_named(reason: str) -> None:
    assert blocker(image(**BLOCKERS[reason])) == reason


def test_the_grid_of_slices_of_uih_is_a_mosaic() -> None:
    why = blocker(image(ImageType=["ORIGINAL", "PRIMARY", "DIFFUSION", "VFRAME"]))
    assert why == blocker(image(ImageType=["ORIGINAL", "PRIMARY", "MOSAIC"]))


def test_a_plain_image_may_be_a_slice() -> None:
    assert blocker(image()) is None
