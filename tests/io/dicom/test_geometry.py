"""The grid of a series: from positions and orientations, and what is wrong with it in figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dicom_phantoms import Phantom, oblique, set_position
from support.tiers import examples

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.geometry import are_even
from cuda_cyclegan.io.dicom.series import Series
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import UnsupportedScanError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Volume

PHANTOM = Phantom()
UNEVEN = Choice(allow_uneven=True)
Edit = Callable[[Any, int], None]


def series_of(folder: Path, choice: Choice = Choice()) -> Series:  # noqa: B008
    [series] = discover([folder], None, choice).series
    return series


def volume_of(folder: Path, choice: Choice = Choice()) -> Volume:  # noqa: B008
    [study] = discover([folder], None, choice).studies
    return read(study)


@pytest.mark.parametrize(
    "phantom",
    [
        PHANTOM,
        oblique(PHANTOM),
        replace(PHANTOM, orientation=(0, 1, 0, 0, 0, -1)),
        replace(PHANTOM, orientation=(1, 0, 0, 0, 0, -1)),
        replace(PHANTOM, orientation=(-1, 0, 0, 0, -1, 0)),
    ],
    ids=["axial", "oblique", "sagittal", "coronal", "prone"],
)
def test_every_voxel_lies_where_its_header_puts_it(tmp_path: Path, phantom: Phantom) -> None:
    def shuffled(data: Any, at: int) -> None:
        data.InstanceNumber = (7 * at) % 12  # instance numbers say nothing about order

    phantom.write(tmp_path / "in", shuffled)
    volume = volume_of(tmp_path / "in")
    np.testing.assert_allclose(volume.affine, phantom.affine(), atol=1e-6)
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0), phantom.voxels())
    assert volume.spacing == pytest.approx((0.5, 0.75, 2.0))


def test_slices_stored_from_top_to_bottom_come_the_same(tmp_path: Path) -> None:
    down = replace(PHANTOM, step=(0, 0, -2.0))
    down.write(tmp_path / "in")
    volume = volume_of(tmp_path / "in")
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0), down.voxels()[::-1])
    assert volume.affine[:3, 3] == pytest.approx([30, 20, 10 - 22])


def test_rounded_positions_are_even(tmp_path: Path) -> None:
    def rounded(data: Any, _: int) -> None:
        set_position(data, np.round(np.array(data.ImagePositionPatient, float), 2))

    replace(oblique(PHANTOM), spacing=0.625).write(tmp_path / "in", rounded)
    assert series_of(tmp_path / "in").verdict == "taken"


def uneven(data: Any, at: int) -> None:
    set_position(data, (-30, -20, 10 + 2 * at + (0.4 if at == 5 else 0)))


def sideways(data: Any, at: int) -> None:
    set_position(data, (-30 + (3 if at == 5 else 0), -20, 10 + 2 * at))


TILTED = replace(PHANTOM, step=(0.0, 0.5, 2.0))


@pytest.mark.parametrize(
    ("phantom", "edit", "missing", "figures"),
    [
        (PHANTOM, None, (4,), ["1 of 12 slices are missing", "after slice 4", "4.000", "2.000"]),
        (PHANTOM, None, (4, 5, 8), ["3 of 12 slices are missing", "6.000 mm"]),
        (PHANTOM, uneven, (), ["1.600 to 2.400 mm", "median 2.000"]),
        (PHANTOM, sideways, (), ["shifted in-plane", "3.000 mm"]),
        (TILTED, None, (), ["tilted by 14.04 degrees"]),
        (replace(TILTED, slices=40), None, (), ["tilted by 14.04 degrees"]),
    ],
    ids=["one missing", "three missing", "uneven", "sideways", "tilt", "long tilt"],
)
def test_a_bad_stack_is_refused_with_the_figures_or_resampled(
    tmp_path: Path,
    phantom: Phantom,
    edit: Edit | None,
    missing: tuple[int, ...],
    figures: list[str],
) -> None:
    paths = phantom.write(tmp_path / "in", edit)
    for at in missing:
        paths[at].unlink()
    series = series_of(tmp_path / "in")
    assert series.verdict == "refused"
    assert series.reason is not None
    assert all(figure in series.reason for figure in figures)
    with pytest.raises(
        UnsupportedScanError, match=r"not translated: its slices|slices are missing"
    ):
        volume_of(tmp_path / "in")
    allowed = series_of(tmp_path / "in", UNEVEN)
    assert allowed.verdict == "taken"
    assert any("resampled onto an even grid" in note for note in allowed.notes)
    volume = volume_of(tmp_path / "in", UNEVEN)
    directions = volume.affine[:3, :3] / volume.spacing
    np.testing.assert_allclose(directions.T @ directions, np.eye(3), atol=1e-6)


def smooth(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A scalar field that linear interpolation reproduces; points (..., 3) in LPS."""
    return np.rint(2000 + 20 * points[..., 0] + 10 * points[..., 1] + 8 * points[..., 2])


def write_field(phantom: Phantom, folder: Path, edit: Edit | None = None) -> list[Path]:
    def field(data: Any, at: int) -> None:
        if edit:
            edit(data, at)
        row, column = np.reshape(np.array(data.ImageOrientationPatient, float), (2, 3))
        j, i = np.indices((phantom.rows, phantom.columns))
        offset = i[..., None] * row * phantom.pixel[1] + j[..., None] * column * phantom.pixel[0]
        points = np.array(data.ImagePositionPatient, float) + offset
        data.PixelData = smooth(points).astype(np.int16).tobytes()

    return phantom.write(folder, field)


@pytest.mark.parametrize(
    ("phantom", "edit", "missing"),
    [
        (TILTED, None, ()),
        (replace(TILTED, step=(-0.7, -0.5, 2.0)), None, ()),
        (replace(TILTED, step=(0.0, 0.5, -2.0)), None, ()),
        (PHANTOM, uneven, ()),
        (PHANTOM, sideways, ()),
        (PHANTOM, None, (3, 4, 7)),
    ],
)
def test_resampling_puts_values_where_they_are_in_the_patient(
    tmp_path: Path, phantom: Phantom, edit: Edit | None, missing: tuple[int, ...]
) -> None:
    paths = write_field(replace(phantom, rows=64, columns=64), tmp_path / "in", edit)
    for at in missing:
        paths[at].unlink()
    volume = volume_of(tmp_path / "in", UNEVEN)
    i, j, k = np.indices(volume.shape)
    ras = np.stack([i, j, k], axis=-1) @ volume.affine[:3, :3].T + volume.affine[:3, 3]
    expected = smooth(ras * [-1, -1, 1])
    values = volume.voxels.astype(float)
    covered = np.abs(values - expected) <= 2
    filled = values == values.min()
    assert covered[~filled].mean() > 0.93  # the edges of slices blend into the fill
    assert covered[~filled].sum() > 64 * 64 * 10


ANY_UPRIGHT = {
    "seed": st.integers(0, 1 << 30),
    "spacing": st.floats(0.3, 8),
    "pixel": st.tuples(st.floats(0.2, 3), st.floats(0.2, 3)),
}


def upright(seed: int, spacing: float, pixel: tuple[float, float]) -> Phantom:
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    orientation = tuple(turn[:, :2].T.ravel())
    return replace(PHANTOM, orientation=orientation, spacing=spacing, pixel=pixel)


@settings(max_examples=examples(25, fast=5), deadline=None)
@given(**ANY_UPRIGHT)
def test_any_upright_stack_is_taken_as_it_is(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    spacing: float,
    pixel: tuple[float, float],
) -> None:
    folder = tmp_path_factory.mktemp("series")
    phantom = upright(seed, spacing, pixel)
    phantom.write(folder)
    volume = volume_of(folder)
    np.testing.assert_allclose(volume.affine, phantom.affine(), atol=1e-4)


@settings(max_examples=examples(25, fast=5), deadline=None)
@given(**ANY_UPRIGHT, digits=st.sampled_from([4, 6, 10]))
def test_rest_of_any_upright_stack_stays_where_it_is(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    spacing: float,
    pixel: tuple[float, float],
    digits: int,
) -> None:
    """Positions are rounded, but that moves no slice sideways; a missing one is between others."""
    folder, missing = tmp_path_factory.mktemp("series"), 4
    phantom = upright(seed, spacing, pixel)

    def rounded(data: Any, _: int) -> None:
        set_position(data, np.round(np.array(data.ImagePositionPatient, float), digits))

    phantom.write(folder, rounded)[missing].unlink()
    volume = volume_of(folder, UNEVEN)
    there = np.delete(np.arange(phantom.slices), missing)
    np.testing.assert_allclose(volume.affine, phantom.affine(), atol=2e-3)
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0)[there], phantom.voxels()[there])


def test_repeated_slices_are_refused_with_the_figures_or_taken_once(tmp_path: Path) -> None:
    PHANTOM.write(tmp_path / "in")

    def again(data: Any, at: int) -> None:
        data.SOPInstanceUID += ".9"
        data.InstanceNumber = 100 + at

    replace(PHANTOM, slices=3, seed=5).write(tmp_path / "in", again, prefix="again")
    series = series_of(tmp_path / "in")
    assert series.verdict == "refused"
    assert series.reason is not None
    assert "15 images have 12 positions, 1 to 2 at each" in series.reason
    volume = volume_of(tmp_path / "in", UNEVEN)
    np.testing.assert_array_equal(volume.voxels.transpose(2, 1, 0), PHANTOM.voxels())


def test_directions_that_are_not_perpendicular_are_refused_always(tmp_path: Path) -> None:
    replace(PHANTOM, orientation=(1, 0, 0, 0.5, 0.866, 0)).write(tmp_path / "in")
    assert series_of(tmp_path / "in").verdict == "refused"
    assert series_of(tmp_path / "in", UNEVEN).verdict == "refused"


@pytest.mark.parametrize(
    ("spacing", "off", "expected"),
    [(1.0, 0.04, True), (1.0, 0.08, False), (10.0, 0.08, True), (10.0, 0.2, False)],
)
def test_a_slice_may_be_off_by_a_share_of_the_spacing_and_by_a_tenth_of_a_millimetre(
    spacing: float, off: float, expected: bool
) -> None:
    depths = [spacing * at for at in range(9)]
    depths[4] += off
    assert are_even(depths) == expected
