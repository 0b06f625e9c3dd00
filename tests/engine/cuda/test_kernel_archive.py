"""Kernels that are compiled ahead: which archive serves, and what happens without one."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest
from support.described_gpus import H200

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine.compiler.kernels.table import KERNELS
from cuda_cyclegan.engine.cuda import kernel_archive, kernel_images
from cuda_cyclegan.engine.cuda.kernel_archive import KernelArchive, write_archive
from cuda_cyclegan.engine.cuda.kernel_images import Kernels
from cuda_cyclegan.engine.cuda.nvrtc import Image
from cuda_cyclegan.engine.errors import CudaError

WIDE = "convolve_voxels<2>"
"""An instance of convolve_voxels.cu."""


def code(source: str, *_: object, instances: tuple[str, ...], in_blocks: bool) -> Image:
    text = f"{source} {instances} {in_blocks}".encode() + bytes(range(256))
    return Image(text, {each: f"_{each}" for each in instances})


@pytest.fixture(autouse=True)
def _compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_archive, "compiled", code)
    monkeypatch.setattr(kernel_archive, "toolkit", lambda: "12.9")


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[KernelArchive]:
    write_archive(tmp_path, "fp16", (9, 0))
    opened = KernelArchive.open("fp16", (9, 0), tmp_path)
    assert opened is not None
    with opened:
        yield opened


def test_an_archive_has_all_that_its_gpu_may_launch(archive: KernelArchive) -> None:
    for spec in KERNELS.values():
        launched = spec.instances_for("fp16", (9, 0))
        for instance in spec.instances or (None,):
            for in_blocks in {False, spec.in_blocks}:
                image = archive.image(spec.source, instance, in_blocks=in_blocks)
                chosen = (instance,) if instance else ()
                expected = code(spec.source, instances=chosen, in_blocks=in_blocks)
                assert image == (expected if instance in launched else None)


def test_archives_of_other_chips_and_elements_do_not_serve(tmp_path: Path) -> None:
    written = write_archive(tmp_path, "fp16", (9, 0))
    assert KernelArchive.open("fp16", (8, 6), tmp_path) is None
    assert KernelArchive.open("bf16", (9, 0), tmp_path) is None
    keys: set[str] = set()
    for name, chip in (("sm_90-fp16", (9, 0)), ("sm_86-fp16", (8, 6))):
        written = written.rename(tmp_path / f"{name}.zip")
        opened = KernelArchive.open("fp16", chip, tmp_path)
        assert opened is not None
        with opened:
            keys.add(opened.key)
    assert len(keys) == 2


def test_edited_sources_are_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, "fp16", (9, 0))
    for path in kernel_archive.FOLDER.glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(kernel_archive, "FOLDER", tmp_path)
    same = KernelArchive.open("fp16", (9, 0), tmp_path)
    assert same is not None
    same.__exit__()
    with (tmp_path / "pack.cu").open("a") as file:
        file.write("// edited\n")
    assert KernelArchive.open("fp16", (9, 0), tmp_path) is None


@pytest.mark.parametrize("length", [0, 100, -20])
def test_a_damaged_archive_is_not_opened(tmp_path: Path, length: int) -> None:
    path = write_archive(tmp_path, "fp16", (9, 0))
    path.write_bytes(path.read_bytes()[:length])
    assert KernelArchive.open("fp16", (9, 0), tmp_path) is None


@pytest.mark.parametrize("comment", [b"", b"no JSON", b'{"compiler": "NVRTC 12.9"}'])
def test_an_archive_that_does_not_state_its_sources_is_not_opened(
    tmp_path: Path, comment: bytes
) -> None:
    path = write_archive(tmp_path, "fp16", (9, 0))
    with ZipFile(path, "a") as file:
        file.comment = comment
    assert KernelArchive.open("fp16", (9, 0), tmp_path) is None


def test_a_damaged_member_is_missing(tmp_path: Path) -> None:
    path = write_archive(tmp_path, "fp16", (9, 0))
    whole = bytearray(path.read_bytes())
    begin = whole.index(f"convolve_voxels: {WIDE}".encode())
    whole[begin + 40] ^= 255
    path.write_bytes(whole)
    opened = KernelArchive.open("fp16", (9, 0), tmp_path)
    assert opened is not None
    with opened:
        assert opened.image("convolve_voxels", WIDE, in_blocks=False) is None
        assert opened.image("pack", None, in_blocks=False) is not None


def opened_kernels(
    monkeypatch: pytest.MonkeyPatch, folder: Path, refused: bytes, *, is_sticky: bool = False
) -> Kernels:
    """Kernels with an archive; the driver refuses code that begins so."""
    write_archive(folder, "fp16", (9, 0))

    def module(image: bytes, _: object) -> Any:
        if image.startswith(refused):
            text = "invalid device kernel image"
            raise CudaError("cuModuleLoadData", text, "update the driver", is_sticky=is_sticky)
        return nullcontext(SimpleNamespace(kernel=lambda name: (name, image)))

    def compiled(*given: Any, **chosen: Any) -> Image:
        image = code(*given, **chosen)
        return Image(b"compiled " + image.code, image.symbols)

    monkeypatch.setattr(kernel_archive, "ARCHIVES", folder)
    monkeypatch.setattr(kernel_images, "CudaModule", module)
    monkeypatch.setattr(kernel_images, "compiled", compiled)
    return Kernels("fp16", H200, None)


def test_kernels_come_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_kernels(monkeypatch, tmp_path, b"none") as kernels:
        name, image = kernels.kernel("convolve_voxels", WIDE)
        assert (name, image) == (
            f"_{WIDE}",
            code("convolve_voxels", instances=(WIDE,), in_blocks=False).code,
        )
        assert kernels.image_key("pack") == kernels.image_key("convolve")


def test_kernels_that_the_driver_refuses_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_kernels(monkeypatch, tmp_path, b"pack") as kernels:
        before = kernels.image_key("pack")
        _, image = kernels.kernel("pack", "pack")
        assert image.startswith(b"compiled pack")
        assert kernels.image_key("pack") != before


def test_a_device_that_is_lost_while_an_image_loads_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        opened_kernels(monkeypatch, tmp_path, b"pack", is_sticky=True) as kernels,
        pytest.raises(CudaError, match="cuModuleLoadData"),
    ):
        kernels.kernel("pack", "pack")
