"""All kernels compile for every supported chip; no card is needed."""

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

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


def test_compiled_kernels_are_kept(tmp_path):
    first = compiled("pack", "fp16", (9, 0), tmp_path)
    [kept] = tmp_path.iterdir()
    kept.write_bytes(b"kept")
    assert first != b"kept"
    assert compiled("pack", "fp16", (9, 0), tmp_path) == b"kept"
    assert compiled("pack", "bf16", (9, 0), tmp_path) != b"kept"
