"""The preview: the right slices, the right way round, in the patient's proportions."""

from io import BytesIO
from itertools import permutations, product

import numpy as np
import pytest
from PIL import Image
from support.numerics_models import card, volume

from cuda_cyclegan.engine.model.intensity_maps import Percentiles, Window
from cuda_cyclegan.io.volume import NOTICE, Volume
from cuda_cyclegan.pipelines.study.geometry import mid_slices
from cuda_cyclegan.pipelines.study.preview import difference_shades, draw_preview, grey_shades

WAYS = [
    np.array([[s if a == o else 0 for a in range(3)] for o, s in zip(order, signs, strict=True)]).T
    for order in permutations(range(3))
    for signs in product((1, -1), repeat=3)
]


def patient(way: np.ndarray, spacing: tuple[float, float, float] = (1, 1, 1)) -> Volume:
    """A body with a marker in the patient's right, front and top, stored in any of 48 ways.

    way: columns are the directions of i, j and k in RAS.
    """
    ras = np.zeros((13, 15, 17), np.int16)
    ras[1:4, 7, 8] = 100  # low R index is left, high is right: this one is left
    ras[6, 12:14, 8] = 200  # front
    ras[6, 7, 14:16] = 300  # top
    order = np.abs(way).argmax(axis=0)
    signs = way.sum(axis=0)
    stored = ras.transpose(order)[tuple(slice(None, None, int(sign)) for sign in signs)]
    affine = np.eye(4)
    affine[:3, :3] = way * np.array(spacing)[order]
    return volume(stored, affine)


@pytest.mark.parametrize("way", WAYS, ids=range(48))
def test_every_storage_order_gives_the_same_slices(way: np.ndarray) -> None:
    axial, coronal, sagittal = (plane.values for plane in mid_slices(patient(way)))
    assert axial.shape == (15, 13)
    assert (axial[7, -4:-1] == 100).all(), "the patient's left is on the right of the picture"
    assert (axial[1:3, 6] == 200).all(), "the patient's front is on top"
    assert (coronal[1:3, 6] == 300).all(), "the patient's top is on top"
    assert (coronal[8, -4:-1] == 100).all()
    assert (sagittal[8, 1:3] == 200).all(), "the patient's front is on the left"
    assert (sagittal[1:3, 7] == 300).all()


def test_slices_are_in_the_scans_unit_and_know_their_millimetres() -> None:
    scan = patient(np.eye(3), (1, 2, 3))
    scaled = scan.with_voxels(scan.voxels, 2.0, -1000.0)
    axial, coronal, sagittal = mid_slices(scaled)
    assert axial.values.min() == -1000
    assert axial.values.max() == -600
    assert [plane.extents for plane in (axial, coronal, sagittal)] == [(30, 13), (51, 13), (51, 30)]


def columns(png: bytes) -> list[np.ndarray]:
    """Input, output and difference as RGB arrays."""
    picture = np.asarray(Image.open(BytesIO(png)))
    return np.split(picture, 3, axis=1)


def test_proportions_are_the_patients() -> None:
    slab = volume(np.arange(1600.0).reshape(20, 20, 4), np.diag([1, 1, 10, 1]))
    planes = mid_slices(slab)
    picture = Image.open(BytesIO(draw_preview([planes], [planes], card())))
    frame = 40 + 3 * 2 * 24 + 76
    assert picture.height == frame + 150 + 300 + 300, "20 mm are half as high as 40 mm"


def test_an_output_equal_to_its_input_shows_no_difference() -> None:
    planes = mid_slices(patient(np.eye(3)))
    given, made, change = columns(draw_preview([planes], [planes], card()))
    body = slice(40, -76)
    assert np.array_equal(given[body], made[body])
    colourful = np.ptp(change[body].astype(int), axis=2) > 20
    assert not colourful.any()


def test_it_says_that_it_is_synthetic() -> None:
    """The mark is in its text, which a program reads, and in the picture, above the result and
    below.
    """
    planes = mid_slices(patient(np.eye(3)))
    png = draw_preview([planes], [planes], card(target="CT"))
    assert Image.open(BytesIO(png)).info["Description"] == NOTICE
    given, made, _ = columns(png)
    assert not np.array_equal(given[:40], made[:40])
    assert made[-28:].max() > 200, "the notice runs below the middle column"


def test_more_is_orange_and_less_is_blue() -> None:
    scan = patient(np.eye(3))
    before = mid_slices(scan)
    brighter = mid_slices(scan.with_voxels(scan.voxels + 50))
    darker = mid_slices(scan.with_voxels(scan.voxels - 50))
    *_, more = columns(draw_preview([before], [brighter], card()))
    *_, less = columns(draw_preview([before], [darker], card()))
    assert more[..., 0].sum(dtype=int) > 2 * more[40:-76, :, 2].sum(dtype=int)
    assert less[40:-76, :, 2].sum(dtype=int) > 2 * less[40:-76, :, 0].sum(dtype=int)


def test_a_models_window_is_the_windows_shown_and_outliers_do_not_widen_the_others() -> None:
    values = np.full((40, 40), 10, np.float32)
    values[:20] = 90
    values[0, 0] = 1e6
    window = grey_shades([values]).window
    assert (window.low, window.high) == (10, 90)
    signed = difference_shades([values - 50]).window
    assert (signed.low, signed.high) == (-40, 40)


@pytest.mark.parametrize("value", [0.0, -5.0, 3e38])
def test_a_constant_output_can_be_drawn(value: float) -> None:
    scan = patient(np.eye(3))
    flat = scan.with_voxels(np.full(scan.shape, value, np.float32))
    other_unit = card(intensity_in=Percentiles(0, 100), intensity_out=Window(0, 1000))
    for model in (card(), other_unit):
        assert draw_preview([mid_slices(scan)], [mid_slices(flat)], model).startswith(b"\x89PNG")


def test_names_of_any_length_and_script_are_drawn() -> None:
    planes = mid_slices(patient(np.eye(3)))
    model = card(source="磁共振" * 30, target="T2-weighted FLAIR after contrast")
    assert draw_preview([planes], [planes], model).startswith(b"\x89PNG")
