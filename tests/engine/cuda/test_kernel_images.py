"""Kernels of one GPU are found by their file, name and kind of patches."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.described_gpus import H200

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.cuda import kernel_archive, kernel_images
from cuda_cyclegan.engine.cuda.kernel_images import Kernels


def test_kernels_are_found_by_file_name_and_kind_of_patches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[tuple[str, tuple[str, ...], bool]] = []

    def image(
        source: str, *_: object, instances: tuple[str, ...], in_blocks: bool
    ) -> SimpleNamespace:
        made.append((source, instances, in_blocks))
        code = f"{source} in blocks" if in_blocks else source
        return SimpleNamespace(code=code, symbols={each: f"_{each}" for each in instances})

    def module(code: str, _: object) -> Any:
        return nullcontext(SimpleNamespace(kernel=lambda name: f"{name} of {code}"))

    monkeypatch.setattr(kernel_archive, "ARCHIVES", tmp_path)
    monkeypatch.setattr(kernel_images, "compiled", image)
    monkeypatch.setattr(kernel_images, "CudaModule", module)
    with Kernels("fp16", H200, None) as kernels:
        for _ in range(2):
            assert kernels.kernel("pack", "pack") == "pack of pack"
            assert kernels.kernel("unpack", "pack") == "pack of unpack"
            assert kernels.kernel("unpack", "unpack") == "unpack of unpack"
            assert kernels.kernel("pack", "pack", in_blocks=True) == "pack of pack in blocks"
            for channels in (1, 2):
                name = f"convolve_voxels<{channels}>"
                assert kernels.kernel("convolve_voxels", name) == f"_{name} of convolve_voxels"
    assert made == [
        ("pack", (), False),
        ("unpack", (), False),
        ("pack", (), True),
        ("convolve_voxels", ("convolve_voxels<1>",), False),
        ("convolve_voxels", ("convolve_voxels<2>",), False),
    ]
