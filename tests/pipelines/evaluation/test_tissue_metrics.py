"""Errors per tissue and overlap of bone by their formulas, and the field of view of a CT."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.evaluation_images import hounsfield_images, without_extension

from cuda_cyclegan.pipelines.errors import ComparisonError
from cuda_cyclegan.pipelines.evaluation import protocols
from cuda_cyclegan.pipelines.evaluation.images import Images, StoredImage
from cuda_cyclegan.pipelines.evaluation.protocols import Outside, Protocol, measure
from cuda_cyclegan.pipelines.hounsfield import BONE_HU, TISSUES

SYNTHRAD2025 = without_extension(protocols.SYNTHRAD2025)


def general(outside: Outside = "below-air") -> Protocol:
    return without_extension(protocols.general(None, outside))


@pytest.mark.parametrize("protocol", [general("none"), SYNTHRAD2025])
def test_errors_follow_their_formulas(protocol: Protocol) -> None:
    images = hounsfield_images(2)
    assert images.inside is not None
    truth, result = images.truth.voxels[images.inside], images.result.voxels[images.inside]
    figures = measure(images, protocol).figures
    assert figures.me == pytest.approx((result - truth).mean(), rel=1e-9)
    assert figures.rmse == pytest.approx(np.sqrt(((result - truth) ** 2).mean()), rel=1e-12)
    assert figures.tissues
    for tissue in TISSUES:
        chosen = (truth >= tissue.low) & (truth < tissue.high)
        change = (result - truth)[chosen]
        assert figures.tissues.voxels[tissue.name] == change.size > 0
        values = figures.tissues.values
        assert values[f"mae_{tissue.name}"] == pytest.approx(np.abs(change).mean())
        assert values[f"me_{tissue.name}"] == pytest.approx(change.mean())
    for limit in BONE_HU:
        a, b = truth >= limit, result >= limit
        dice = 2 * (a & b).sum() / (a.sum() + b.sum()) if (a | b).any() else None
        assert figures.tissues.values[f"dice_{limit}"] == pytest.approx(dice)


def test_tissues_do_not_overlap() -> None:
    for before, after in pairwise(TISSUES):
        assert before.low < before.high <= after.low


def test_a_truth_that_is_no_ct_has_no_tissues() -> None:
    images = hounsfield_images(2)
    assert measure(images, general(), "MR").figures.tissues is None
    assert measure(images, general(), "MR").outside == 0
    positive = StoredImage(np.abs(images.truth.voxels))
    assert measure(replace(images, truth=positive), general()).figures.tissues is None
    assert measure(replace(images, truth=positive), general(), "CT").figures.tissues


def filled(value: int) -> tuple[Images, Images]:
    """CT-like images, and the same with a fifth of both filled with a value."""
    random = np.random.default_rng(0)
    truth = random.integers(-1024, 1500, (20, 24, 28)).astype(np.int16)
    result = truth + random.integers(-50, 50, truth.shape).astype(np.int16)
    within = Images(StoredImage(truth), StoredImage(result), np.ones(truth.shape, np.bool_))
    spoilt = [image.copy() for image in (truth, result)]
    assert within.inside is not None
    within.inside[:4] = False
    for image in spoilt:
        image[:4] = value
    return within, Images(StoredImage(spoilt[0]), StoredImage(spoilt[1]))


@pytest.mark.parametrize(
    ("value", "protocol"),
    [(-1025, general()), (-3024, protocols.general(None)), (-32768, general())],
)
def test_values_below_air_are_masked_and_counted(value: int, protocol: Protocol) -> None:
    within, spoilt = filled(value)
    found, expected = measure(spoilt, protocol), measure(within, protocol)
    assert found.figures == expected.figures
    assert (found.outside, found.voxels) == (4 * 24 * 28, 16 * 24 * 28)
    raised = measure(spoilt, general("none")).figures.psnr
    assert raised
    assert expected.figures.psnr
    assert raised > expected.figures.psnr + 0.9, "the fill counts as agreement"


def test_1024_below_0_is_air_and_stays() -> None:
    _, spoilt = filled(-1024)
    assert measure(spoilt, general()).outside == 0


def test_a_stated_value_replaces_the_limit() -> None:
    within, spoilt = filled(1499)
    truth = spoilt.truth.voxels
    truth[5:][truth[5:] == 1499] = 1498
    found = measure(spoilt, general(1499.0))
    assert found.outside == 4 * 24 * 28
    scaled = StoredImage(truth, 0.1, 3.7)
    assert measure(replace(spoilt, truth=scaled), general(153.6)).outside == 4 * 24 * 28
    assert measure(within, general(-3024.0)).outside == 0


def test_a_result_without_what_the_truth_has_is_in_error() -> None:
    within, _ = filled(0)
    assert within.inside is not None
    result = within.result.voxels.copy()
    result[10:12] = -3024
    found = measure(replace(within, result=StoredImage(result)), general())
    assert found.outside == 0
    assert found.figures.mae > 200


def test_a_truth_outside_everywhere_is_refused() -> None:
    empty = Images(
        StoredImage(np.full((9, 9, 9), -3024, np.int16)), StoredImage(np.zeros((9, 9, 9)))
    )
    with pytest.raises(ComparisonError, match="outside its field of view"):
        measure(empty, general())


def test_synthrad2025_masks_nothing_itself() -> None:
    _, spoilt = filled(-3024)
    inside = np.ones(spoilt.extents, np.bool_)
    found = measure(replace(spoilt, inside=inside), SYNTHRAD2025)
    assert (found.outside, found.voxels) == (0, inside.size)
