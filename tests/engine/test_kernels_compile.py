"""All kernels compile for every supported chip; no card is needed."""

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from ctypes import sizeof

from cuda_cyclegan.engine import kernel_arguments, nvrtc
from cuda_cyclegan.engine.nvrtc import FOLDER, compiled

KERNELS = [path.stem for path in sorted(FOLDER.glob("*.cu"))]
CHIPS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_the_oldest_and_newest_chip(name, precision):
    for chip in (CHIPS[0], CHIPS[-1]):
        assert compiled(name, precision, chip).startswith(b"\x7fELF")


@pytest.mark.parametrize("chip", CHIPS[1:-1])
def test_kernels_compile_for_the_chips_between(chip):
    for name in KERNELS:
        assert compiled(name, "fp16", chip).startswith(b"\x7fELF")


ARGUMENTS = {
    "convolve": ["Convolve"],
    "convolve_patches": ["ConvolvePatches"],
    "convolve_to_patches": ["ConvolveToPatches", "Strides"],
    "pack": ["Pack"],
    "pointwise": ["Pointwise", "Strides", "Activation"],
    "statistics": ["Measure", "Conclude"],
    "unpack": ["Unpack", "SumTaps"],
}


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_are_laid_out_as_the_kernels_read_them(name, tmp_path, monkeypatch):
    checks = []
    for structure in ARGUMENTS[name]:
        mirrored = getattr(kernel_arguments, structure)
        checks.append(f'static_assert(sizeof({structure}) == {sizeof(mirrored)}, "size");')
        for field, _ in mirrored._fields_:
            offset = getattr(mirrored, field).offset
            checks.append(
                f'static_assert(__builtin_offsetof({structure}, {field}) == {offset}, "place");'
            )
    (tmp_path / "element.cuh").write_text((FOLDER / "element.cuh").read_text())
    source = (FOLDER / f"{name}.cu").read_text()
    (tmp_path / f"{name}.cu").write_text(source + "\n".join(checks))
    monkeypatch.setattr(nvrtc, "FOLDER", tmp_path)
    assert compiled(name, "fp16", (9, 0))


def test_compiled_kernels_are_kept(tmp_path):
    first = compiled("pack", "fp16", (9, 0), tmp_path)
    [kept] = tmp_path.iterdir()
    kept.write_bytes(b"kept")
    assert first != b"kept"
    assert compiled("pack", "fp16", (9, 0), tmp_path) == b"kept"
    assert compiled("pack", "bf16", (9, 0), tmp_path) != b"kept"
