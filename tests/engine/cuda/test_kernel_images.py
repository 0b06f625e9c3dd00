"""Kernels of one GPU are found by their file, name and kind of patches."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from support.described_cards import H200

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.cuda import kernel_images
from cuda_cyclegan.engine.cuda.kernel_images import Kernels


def test_kernels_of_one_name_in_two_files_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, bool]] = []

    def image(source: str, *_: object, in_blocks: bool) -> str:
        compiled.append((source, in_blocks))
        return f"{source} in blocks" if in_blocks else source

    def module(image: str, _: object) -> Any:
        return nullcontext(SimpleNamespace(kernel=lambda name: f"{name} of {image}"))

    monkeypatch.setattr(kernel_images, "compiled", image)
    monkeypatch.setattr(kernel_images, "CudaModule", module)
    with Kernels("fp16", H200, None) as kernels:
        for _ in range(2):
            assert kernels.kernel("one", "convolve") == "convolve of one"
            assert kernels.kernel("other", "convolve") == "convolve of other"
            assert kernels.kernel("one", "convolve", in_blocks=True) == "convolve of one in blocks"
    assert compiled == [("one", False), ("other", False), ("one", True)]
