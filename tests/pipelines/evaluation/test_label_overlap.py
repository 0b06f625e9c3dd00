"""Overlap of segmentations, against the formulas in SciPy and against MONAI."""

from typing import Any

import nibabel as _nibabel
import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage as _ndimage

from cuda_cyclegan.io.volume import Volume
from cuda_cyclegan.pipelines.errors import ComparisonError
from cuda_cyclegan.pipelines.evaluation.label_overlap import (
    LabelOverlap,
    label_overlaps,
    label_table,
    mean_dice,
    mean_hd95,
    overlap_notes,
    surface_distance,
)

ndimage: Any = _ndimage
nibabel: Any = _nibabel
SPACING = (0.8, 1.3, 3.0)


def segments(seed: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Two smooth segments [k, j, i] that touch the border; every third is the other one shifted."""
    random = np.random.default_rng(seed)
    shape = random.integers(4, 22, 3)
    one, other = (ndimage.gaussian_filter(random.normal(size=shape), 1.2) > 0 for _ in range(2))
    if seed % 3 == 0:
        other = ndimage.shift(one.astype(int), random.integers(-2, 3, 3), order=0) > 0
    return one, other


def by_definition(one: Any, other: Any, sampling: tuple[float, ...]) -> float:
    surfaces = [each & ~ndimage.binary_erosion(each) for each in (one, other)]
    ends = [
        np.percentile(ndimage.distance_transform_edt(~to, sampling=sampling)[of], 95)
        for of, to in (surfaces, surfaces[::-1])
    ]
    return float(max(ends))


@pytest.mark.parametrize("seed", range(12))
def test_the_surface_distance_is_that_of_scipy_in_millimetres(seed: int) -> None:
    one, other = segments(seed)
    wanted = by_definition(one, other, SPACING[::-1])
    assert surface_distance(one, other, SPACING) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_surface_distance_is_that_of_monai() -> None:
    metrics, torch = pytest.importorskip("monai.metrics"), pytest.importorskip("torch")
    for seed in range(12):
        one, other = segments(seed)
        both = [torch.tensor(each)[None, None].float() for each in (one, other)]
        spacing = list(SPACING[::-1])
        found = metrics.compute_hausdorff_distance(*both, percentile=95, spacing=spacing)
        assert surface_distance(one, other, SPACING) == pytest.approx(float(found), rel=1e-5)


def volume(labels: Any, names: "dict[int, str] | None" = None, **changes: Any) -> Volume:
    """Labels [i, j, k]; names: in a table as TotalSegmentator writes it."""
    header = nibabel.Nifti1Header()
    if names is not None:
        rows = "".join(
            f'<Label Key="{key}" Red="1.0" Alpha="1"><![CDATA[{name}]]></Label>\n'
            for key, name in names.items()
        )
        text = f'<CaretExtension><VolumeInformation Index="0"><LabelTable>{rows}</LabelTable>'
        header.extensions.append(nibabel.nifti1.Nifti1Extension(0, text.encode()))
    return Volume(np.asarray(labels), np.diag([*SPACING, 1.0]), header, "nifti", **changes)


def blocks(shift: int = 0) -> npt.NDArray[np.uint8]:
    """Labels 2 and 7, the first moved along k."""
    labels = np.zeros((12, 10, 14), np.uint8)
    labels[2:6, 2:6, 2 + shift : 6 + shift] = 2
    labels[7:10, 1:9, 9:13] = 7
    return labels


def test_each_label_has_its_overlap_and_distance() -> None:
    liver, bone = label_overlaps(volume(blocks(), {2: "liver", 7: "rib"}), volume(blocks(1)))
    assert liver == LabelOverlap(2, "liver", 0.75, pytest.approx(3.0), 64, 64)
    assert bone == LabelOverlap(7, "rib", 1.0, 0.0, 96, 96)
    assert mean_dice((liver, bone)) == 0.875
    assert mean_hd95((liver, bone)) == pytest.approx(1.5)


def test_a_label_that_one_image_lacks_is_counted_and_noted() -> None:
    labels = blocks()
    found = label_overlaps(volume(labels), volume(np.where(labels == 7, 0, labels)))
    assert found[1] == LabelOverlap(7, "", 0.0, None, 96, 0)
    assert (mean_dice(found), mean_hd95(found)) == (0.5, 0.0)
    [note] = overlap_notes(found)
    assert note == ("the segmentation of the result lacks 7: Dice is 0, and HD95 is not defined")


def test_labels_may_be_stored_with_a_slope() -> None:
    scaled = volume(blocks().astype(np.int16) * 2, slope=0.5)
    assert [each.dice for each in label_overlaps(volume(blocks()), scaled)] == [1.0, 1.0]


def test_names_are_read_from_the_header() -> None:
    assert label_table(volume(blocks(), {0: "background", 2: "liver & bile", 7: "rib"})) == {
        2: "liver & bile",
        7: "rib",
    }
    assert label_table(volume(blocks())) == {}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (
            volume(blocks(), {2: "liver", 7: "spleen"}),
            "7 is 'rib' in the truth's and 'spleen' in the result's",
        ),
        (volume(blocks() * 0), "segmentation of the result has no label"),
        (volume(blocks() * 0.5 + 0.25), "has the value 0.25, but labels are whole"),
        (volume(np.full((12, 10, 14), np.nan)), "has the value nan"),
        (volume(blocks().astype(np.int16) - 1000), "values from -1000 to -993"),
        (volume(np.arange(1680, dtype=np.int16).reshape(12, 10, 14)), "1679 different values"),
    ],
)
def test_file_without_matching_label_map_is_refused(result: Volume, reason: str) -> None:
    with pytest.raises(ComparisonError, match=reason):
        label_overlaps(volume(blocks(), {2: "liver", 7: "rib"}), result)
