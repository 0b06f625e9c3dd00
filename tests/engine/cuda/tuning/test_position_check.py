"""Whether a convolution's bytes depend on the place of a voxel, by what it makes of moved noise."""

import ctypes
from math import prod
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.steps import Convolution
from cuda_cyclegan.engine.compiler.weight_layout import encoded
from cuda_cyclegan.engine.cuda.tuning.position_check import gives_the_same_anywhere
from cuda_cyclegan.engine.options import Precision

SOURCE, TARGET = (6, 7, 9), (5, 6, 8)


class HostStream:
    """Copies between arrays of the host, at once."""

    def upload_now(self, target: int, content: bytes | memoryview) -> None:
        ctypes.memmove(target, content, len(content))

    def download(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def wait(self) -> None: ...


STORED = {"fp16": np.float16, "bf16": np.uint16, "tf32": np.float32, "fp32": np.float32}
"""By precision, NumPy's type of a stored number; NumPy has no bf16, so its bits."""


def numbers_of(stored: Any, precision: Precision) -> Any:
    if precision == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def judged(precision: Precision, by_place: float, seen: list[Any] | None = None) -> bool:
    """Of sums of 2^3 voxels, which a number for each place is added to; seen: gets the operands."""
    shape = Convolution(
        2, SOURCE, 8, TARGET, 8, (2, 2, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), precision
    )
    number = STORED[precision]
    source: Any = np.zeros((2, *SOURCE, 8), number)
    target: Any = np.zeros((2, *TARGET, 8), number)
    places = np.arange(prod(TARGET)).reshape(TARGET)[None, ..., None]

    def run() -> None:
        operand = numbers_of(source, precision)
        if seen is not None:
            seen.append(operand.astype("f8"))
        sums = by_place * places
        for z in range(2):
            for y in range(2):
                for x in range(2):
                    sums = sums + operand[:, z : z + 5, y : y + 6, x : x + 8].astype("f8")
        content = encoded(sums.astype(np.float32), precision)
        target[...] = np.frombuffer(content, number).reshape(target.shape)

    return gives_the_same_anywhere(
        shape,
        source.ctypes.data,
        target.ctypes.data,
        run,
        HostStream(),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("precision", STORED)
def test_one_that_knows_no_place(precision: Precision) -> None:
    assert judged(precision, 0.0)


@pytest.mark.parametrize("precision", STORED)
def test_one_that_sums_otherwise_elsewhere(precision: Precision) -> None:
    assert not judged(precision, 1e-3)


@pytest.mark.parametrize("precision", STORED)
def test_each_number_of_the_noise_is_one_of_its_precision(precision: Precision) -> None:
    """Bits of fp16 taken for bf16 are numbers from 2^-47 to 2^-8, whose sums hardly round."""
    seen: list[Any] = []
    judged(precision, 0.0, seen)
    assert len(seen) == 2
    for operand in seen:
        assert np.abs(operand).max() <= 1
        assert np.abs(operand).mean() == pytest.approx(0.5, abs=0.02)
