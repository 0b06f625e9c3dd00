"""Many pairs at once: equal figures in any order, failures alone, a stop in the middle."""

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np
import pytest
from PIL import Image
from support.batch_world import bad_scans, stored
from support.evaluation_images import hounsfield_images, without_extension

from cuda_cyclegan.pipelines.evaluation import evaluation as module
from cuda_cyclegan.pipelines.evaluation.evaluation import evaluate
from cuda_cyclegan.pipelines.evaluation.images import Images, StoredImage
from cuda_cyclegan.pipelines.evaluation.metrics import differences
from cuda_cyclegan.pipelines.evaluation.pairs import ScanPair, Sources, find_pairs
from cuda_cyclegan.pipelines.evaluation.protocols import SYNTHRAD2025, Protocol, general, measure
from cuda_cyclegan.pipelines.evaluation.report import Evaluation, PairRow
from cuda_cyclegan.pipelines.study.statistics import Range

nibabel: Any = _nibabel
STUDIES = 3


def heard(_done: int, _due: int) -> None:
    pass


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """STUDIES small studies with masks."""
    for seed, small in enumerate((3, 11, 27)):
        images = hounsfield_images(small)
        assert images.inside is not None
        folders = zip(("truth", "results"), (images.truth, images.result), strict=True)
        for folder, image in folders:
            stored(tmp_path / folder / f"{seed}.nii", image.voxels.astype(np.float32))
        stored(tmp_path / "masks" / f"{seed}.nii.gz", images.inside.astype(np.uint8))
    return Sources(tmp_path / "results", tmp_path / "truth", tmp_path / "masks")


def figures(evaluation: Evaluation) -> dict[str, Any]:
    return {row.name: (row.figures, row.voxels, row.reason) for row in evaluation.rows}


@pytest.mark.slow
def test_figures_do_not_depend_on_order_or_on_how_many_are_under_way(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = list(find_pairs(sources).pairs)
    monkeypatch.setattr(module, "usable_cores", lambda: 1)
    alone = evaluate(pairs, SYNTHRAD2025, heard)
    monkeypatch.setattr(module, "usable_cores", lambda: STUDIES)
    random.Random(0).shuffle(pairs)
    together = evaluate(pairs, SYNTHRAD2025, heard)
    assert figures(alone) == figures(together)
    assert alone.count("evaluated") == STUDIES
    assert alone.summaries() == replace(together, rows=alone.rows).summaries()
    ordered = sorted(together.rows, key=lambda row: row.name)
    assert replace(together, rows=tuple(ordered)).summaries() == alone.summaries()


def test_a_study_is_measured_as_it_is_stored(sources: Sources) -> None:
    pair = find_pairs(sources).pairs[2]
    [row] = evaluate([pair], SYNTHRAD2025, heard).rows
    files = [row.truth, row.result, row.mask]
    truth, result, mask = (np.asarray(nibabel.load(file).dataobj) for file in files)
    expected = measure(
        Images(StoredImage(truth.T), StoredImage(result.T), mask.T > 0), SYNTHRAD2025
    )
    assert row.figures == expected.figures


@pytest.mark.slow
def test_a_bad_study_fails_alone_and_says_why(sources: Sources) -> None:
    expected = bad_scans(sources.truth / "bad")
    bad_scans(sources.results / "bad")
    assert sources.masks
    good = replace(sources, masks=None)
    evaluation = evaluate(find_pairs(good).pairs, general(None), heard, any_truth=True)
    rows = {row.name: row for row in evaluation.rows}
    assert evaluation.count("evaluated") == STUDIES
    for name in expected:
        row = rows[f"bad/{name}"]
        assert row.status in ("failed", "missing"), name
        assert row.reason, name
    assert rows["bad/nan.nii"].reason == (
        "5760 of 5760 voxels of the truth are not finite; mask them out or correct the file."
    )
    assert "gives no data range; state one with setting data-range" in (
        rows["bad/constant.nii"].reason or ""
    )


def one(tmp_path: Path, truth: Any, result: Any, mask: Any = None) -> Sources:
    stored(tmp_path / "t" / "a.nii", truth)
    stored(tmp_path / "r" / "a.nii", result)
    if mask is None:
        return Sources(tmp_path / "r", tmp_path / "t")
    stored(tmp_path / "m" / "a.nii", mask)
    return Sources(tmp_path / "r", tmp_path / "t", tmp_path / "m")


def row_of(sources: Sources, protocol: Protocol | None = None) -> PairRow:
    """The only row, by default of the general protocol, without MS-SSIM if the scan is small."""
    pairs = find_pairs(sources).pairs
    protocol = protocol or without_extension(general(None))
    [row] = evaluate(pairs, protocol, heard, pictures=1, any_truth=True).rows
    return row


CUBE = np.arange(1000, dtype=np.int16).reshape(10, 10, 10)


def test_equal_images_have_figures_and_a_word_on_the_one_without_bound(tmp_path: Path) -> None:
    row = row_of(one(tmp_path, CUBE, CUBE), general(None))
    assert row.figures
    assert (row.figures.mae, row.figures.psnr) == (0, None)
    assert row.figures.ssim == pytest.approx(1)
    assert row.figures.ms_ssim == pytest.approx(1)
    assert row.figures.r == pytest.approx(1)
    assert row.notes == (
        "PSNR has no bound, as result and truth are equal",
        "Gaussian SSIM is not defined, as no voxel of the mask is 5 voxels away from every border",
    )


def test_the_range_is_that_of_the_truth_within_the_mask_or_the_one_asked_for(
    tmp_path: Path,
) -> None:
    mask = (CUBE >= 300).astype(np.uint8)
    row = row_of(one(tmp_path, CUBE, CUBE + 1, mask))
    assert row.data_range
    assert (row.data_range.low, row.data_range.high, row.voxels) == (300, 999, 700)
    assert row.figures
    assert row.figures.psnr == pytest.approx(20 * np.log10(699))
    row = row_of(one(tmp_path, CUBE, CUBE + 1, mask), without_extension(general((0.0, 2000.0))))
    assert row.figures
    assert row.figures.psnr == pytest.approx(20 * np.log10(2000))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ()),
        ((0.0, 1000.0), ()),
        ((5.0, 1000.0), ()),
        ((0.0, 1.0), ("99.8 % of its voxels lie outside the data range 0 to 1",)),
        ((0.0, 899.0), ("10 % of its voxels lie outside the data range 0 to 899",)),
        ((-1e6, 1e6), ("uses less than 1 % of the data range -1e+06 to 1e+06",)),
    ],
)
def test_a_data_range_unlike_the_truth_is_reported(
    tmp_path: Path, asked: tuple[float, float] | None, expected: tuple[str, ...]
) -> None:
    row = row_of(one(tmp_path, CUBE, CUBE + 1), without_extension(general(asked)))
    doubts = [note for note in row.notes if "data range" in note]
    assert len(doubts) == len(expected)
    assert all(words in note for words, note in zip(expected, doubts, strict=True))


def test_voxels_outside_the_mask_change_nothing(tmp_path: Path) -> None:
    mask = np.zeros((10, 10, 10), np.uint8)
    mask[:, :, 2:] = 3
    result = CUBE + np.random.default_rng(0).normal(0, 9, CUBE.shape).astype(np.float32)
    before = row_of(one(tmp_path, CUBE, result, mask), general(None))
    wild, spoilt = CUBE.astype(np.float32), result.copy()
    wild[:, :, 0], spoilt[:, :, :2] = np.nan, np.inf
    after = row_of(one(tmp_path, wild, spoilt, mask), general(None))
    assert before.figures == after.figures
    assert after.status == "evaluated"
    assert after.picture


@pytest.mark.parametrize("kind", ["scaled", "nan"])
def test_a_mask_counts_by_its_values(tmp_path: Path, kind: str) -> None:
    """Masks may be floats scaled to int16 by nibabel, with 0 not stored as 0, or those of SPM."""
    inside = CUBE >= 300
    sources = one(tmp_path, CUBE, CUBE + 1, inside.astype(np.uint8))
    assert sources.masks
    if kind == "nan":
        stored(sources.masks / "a.nii", np.where(inside, np.float32(1), np.float32(np.nan)))
    else:
        image = nibabel.Nifti1Image(inside.astype(np.float32), np.eye(4))
        image.set_data_dtype(np.int16)
        image.to_filename(sources.masks / "a.nii")
        assert np.asarray(nibabel.load(sources.masks / "a.nii").dataobj.get_unscaled()).all()
    assert row_of(sources).voxels == 700


def test_a_mask_below_0_does_not_count(tmp_path: Path) -> None:
    mask = np.where(CUBE >= 300, 1, -1).astype(np.int16)
    sources = one(tmp_path, CUBE, CUBE + 1, mask)
    assert row_of(sources).voxels == 700
    assert sources.masks
    stored(sources.masks / "a.nii", -mask.astype(np.float32))
    assert row_of(sources).voxels == 300
    image = nibabel.Nifti1Image(-mask, np.eye(4))
    image.header.set_slope_inter(-0.5, 0.25)
    image.to_filename(sources.masks / "a.nii")
    assert row_of(sources).voxels == 700


def test_an_empty_mask_and_one_too_small_for_boxes_are_reported(tmp_path: Path) -> None:
    mask = np.zeros((10, 10, 10), np.uint8)
    assert row_of(one(tmp_path, CUBE, CUBE, mask)).reason == (
        "The mask is empty, so there is nothing to compare."
    )
    mask[0, 0, :2] = 1
    row = row_of(one(tmp_path, CUBE, CUBE + 1, mask))
    assert row.figures
    assert row.figures.ssim is None
    assert row.figures.mae == 1
    assert any(note.startswith("SSIM is not defined") for note in row.notes)


def test_synthrad2025_refuses_a_truth_that_is_no_ct(tmp_path: Path) -> None:
    row = row_of(one(tmp_path, CUBE, CUBE, np.ones_like(CUBE)), SYNTHRAD2025)
    assert row.status == "failed"
    assert row.reason == (
        "The truth's lowest value is 0, so it is not a CT in Hounsfield units, where air is about "
        "-1000; protocol synthrad2025 compares nothing else."
    )


def test_grids_that_differ_are_refused_with_the_figures(tmp_path: Path) -> None:
    row = row_of(one(tmp_path, CUBE, CUBE[:, :, 1:]))
    assert row.reason == (
        "The grids of result and truth differ: 10 x 10 x 9 voxels against 10 x 10 x 10; nothing "
        "is resampled here, so bring both onto one grid."
    )
    row = row_of(one(tmp_path, CUBE, CUBE, CUBE[1:]))
    assert "The grids of mask and truth differ: 9 x 10 x 10" in (row.reason or "")


def test_a_stop_leaves_the_rest_undone(sources: Sources) -> None:
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    pairs = (*find_pairs(sources).pairs, ScanPair("z.nii", missing="no ground truth matches it"))
    evaluation = evaluate(pairs, without_extension(SYNTHRAD2025), stop)
    assert evaluation.interrupted
    assert (evaluation.count("evaluated"), evaluation.count("stopped")) == (2, STUDIES - 2)
    assert evaluation.count("missing") == 1


@pytest.mark.slow
def test_the_largest_errors_keep_their_pictures(sources: Sources) -> None:
    evaluation = evaluate(find_pairs(sources).pairs, SYNTHRAD2025, heard, pictures=2)
    errors = {row.name: row.figures.mae for row in evaluation.rows if row.figures}
    worst = sorted(errors, key=lambda name: -errors[name])[:2]
    assert sorted(worst) == [row.name for row in evaluation.rows if row.picture]


def test_the_picture_shows_the_planes_with_the_largest_error(tmp_path: Path) -> None:
    truth = np.zeros((60, 50, 40), np.int16)
    truth[5:55, 5:45, 5:35] = 100
    result = truth.copy()
    result[47:50, 37:40, 27:30] += 90
    row = row_of(one(tmp_path, truth, result))
    assert row.picture
    shown = np.asarray(Image.open(BytesIO(row.picture)).convert("RGB")).astype(int)
    orange = (shown[..., 0] > 200) & (shown[..., 1] < 180) & (shown[..., 2] < 90)
    across = np.flatnonzero(orange.any(axis=0))
    down = np.flatnonzero(orange.any(axis=1))
    assert across.min() > 2 * shown.shape[1] / 3, "in the column of differences alone"
    assert len(np.split(down, np.flatnonzero(np.diff(down) > 20) + 1)) >= 3, "in all three planes"


def test_the_middle_is_shown_where_no_error_stands_out() -> None:
    noise = np.random.default_rng(0).normal(size=(9, 21, 30))
    flat = StoredImage(np.zeros(noise.shape))
    ends = Range(0.0, 1.0)
    assert differences(Images(flat, StoredImage(noise)), ends, clips=False).at == (4, 10, 15)
    assert differences(Images(flat, flat), ends, clips=False).at == (4, 10, 15)
    noise[7, 3, 2] = 1000
    assert differences(Images(flat, StoredImage(noise)), ends, clips=False).at == (7, 3, 2)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_beside_the_volumes_hardly_grows_with_them() -> None:
    random = np.random.default_rng(0)

    def needed(planes: int) -> int:
        truth = random.integers(-1000, 2000, (planes, 128, 128)).astype(np.int16)
        images = Images(StoredImage(truth), StoredImage(truth + np.int16(5)), truth > -900)
        return peak(lambda: measure(images, SYNTHRAD2025))

    small, large = needed(112), needed(448)
    voxels = 336 * 128 * 128
    assert (large - small) / voxels < 2.5, "two images at half the resolution take 2 bytes a voxel"
    assert small < module.BLOCK_BYTES
