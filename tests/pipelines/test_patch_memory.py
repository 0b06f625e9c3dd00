"""A patch that no memory holds is refused with what it needs, what is free and what fits."""

import re

import pytest

from cuda_cyclegan.engine.network.architectures import ResNetSpec, build
from cuda_cyclegan.engine.network.graph_analysis import held_bytes
from cuda_cyclegan.pipelines.decisions import check_patch_memory
from cuda_cyclegan.pipelines.errors import SettingsError

GRAPH = build(ResNetSpec(1, 1, 4, 2))


def test_the_patch_that_it_names_fits_with_space_for_all_else() -> None:
    free = 8 << 30
    with pytest.raises(SettingsError, match=r"2000x2000x2000 need \d+\.\d GiB") as raised:
        check_patch_memory(GRAPH, (2000, 2000, 2000), free)
    assert "and 8.0 GiB are free; setting patch=" in str(raised.value)
    found = re.search(r"patch=(\d+),(\d+),(\d+) fits", str(raised.value))
    assert found
    d, h, w = map(int, found.groups())
    assert held_bytes(GRAPH, (d, h, w)) <= free // 2
    check_patch_memory(GRAPH, (d, h, w), free)


def test_a_patch_that_just_fits_is_tried() -> None:
    patch = 128, 128, 128
    check_patch_memory(GRAPH, patch, held_bytes(GRAPH, patch))
    with pytest.raises(SettingsError):
        check_patch_memory(GRAPH, patch, held_bytes(GRAPH, patch) - 1)
