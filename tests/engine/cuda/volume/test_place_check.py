"""Whether a convolution's bytes depend on the place of a voxel, by what it makes of moved noise."""

import ctypes
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.convolution import Convolution
from cuda_cyclegan.engine.cuda.volume.place_check import gives_the_same_anywhere
from cuda_cyclegan.engine.options import Precision

SOURCE, TARGET = (6, 7, 9), (5, 6, 8)


class HostStream:
    """Copies between arrays of the host, at once."""

    def upload_now(self, target: int, content: bytes) -> None:
        ctypes.memmove(target, content, len(content))

    def download(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def wait(self) -> None: ...


def judged(precision: Precision, by_place: float) -> bool:
    """Of sums of 2^3 voxels, which a number for each place is added to."""
    shape = Convolution(
        2, SOURCE, 8, TARGET, 8, (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), precision
    )
    number = np.float16 if precision == "fp16" else np.float32
    source: Any = np.zeros((2, *SOURCE, 8), number)
    target: Any = np.zeros((2, *TARGET, 8), number)
    places = np.arange(prod(TARGET)).reshape(TARGET)[None, ..., None]

    def run() -> None:
        sums = by_place * places
        for z in range(2):
            for y in range(2):
                for x in range(2):
                    sums = sums + source[:, z : z + 5, y : y + 6, x : x + 8].astype("f8")
        target[...] = sums.astype(number)

    return gives_the_same_anywhere(
        shape,
        source.ctypes.data,
        target.ctypes.data,
        run,
        HostStream(),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_one_that_knows_no_place(precision: Precision) -> None:
    assert judged(precision, 0.0)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_one_that_sums_otherwise_elsewhere(precision: Precision) -> None:
    assert not judged(precision, 1e-3)
