"""Rows of stored voxels into a volume and out of it, by the kernels, lane by lane on the CPU."""

import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gpu_on_cpu import kernels
from support.tiers import examples

from cuda_cyclegan.engine.compiler.kernels.sliding_window import (
    MemoryOrder,
    rows_into_volume,
    rows_of_volume,
)
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.scaling import Scaling, Stored

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

extents_of = st.tuples(*[st.integers(1, 7)] * 3)
flips_of = st.tuples(*[st.booleans()] * 3)


def laid(extents: Triple, order: Any, flips: Any, kind: str) -> Any:
    """An array [1, D, H, W] whose axes lie in memory in this order, some of them turned."""
    memory = np.zeros([extents[axis] for axis in order], kind)
    steps = tuple(slice(None, None, -1 if flip else None) for flip in flips)
    return memory.transpose(np.argsort(order))[steps][None]


@settings(max_examples=examples(100))
@given(
    extents_of,
    st.permutations(range(3)),
    flips_of,
    st.sampled_from(["int16", "float32", "uint8"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 40),
    st.integers(0, 999),
)
def test_any_order_in_and_out(
    extents: Triple,
    order: Any,
    flips: Any,
    kind: str,
    stride: int,
    voxels: int,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    array = laid(extents, order, flips, kind)
    array[...] = random.integers(0, 100, array.shape)
    source = Stored(array, Scaling(3.0, 2.0))
    found = MemoryOrder.of(array)
    seen = found.view(array)
    assert all(
        step > 0 for step, extent in zip(seen.strides, seen.shape, strict=True) if extent > 1
    )
    padded = tuple(-(-extent // stride) * stride for extent in extents)
    volume = np.full(padded, np.nan, np.float32)
    for rows in found.pieces(voxels):
        stored = np.ascontiguousarray(seen[0, rows.start : rows.stop])
        launch = rows_into_volume(
            found, rows, source, stored.ctypes.data, volume.ctypes.data, volume.shape
        )
        kernels.run(launch, "fp32")
    sizes = [(0, p - e) for p, e in zip(padded, extents, strict=True)]
    assert np.array_equal(volume, np.pad(source.scaling.forward(array)[0], sizes, "edge"))

    for rows in found.pieces(voxels):
        into = np.full((len(rows), *found.extents[1:]), np.nan, np.float32)
        launch = rows_of_volume(found, rows, volume.ctypes.data, volume.shape, into.ctypes.data)
        kernels.run(launch, "fp32")
        d, h, w = extents
        cropped = found.view(np.ascontiguousarray(volume[:d, :h, :w])[None])
        assert np.array_equal(into, cropped[0, rows.start : rows.stop])
