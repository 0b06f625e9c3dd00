"""Reports of the doctor on GPUs, cuDNN and NVRTC, with simulated machines."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.described_gpus import DESCRIBED, DescribedGpu

from cuda_cyclegan.engine.probe import cuda_packages
from cuda_cyclegan.engine.probe.cuda_packages import LIBRARY, CudnnCopy
from cuda_cyclegan.engine.probe.gpus import CudaDevice
from cuda_cyclegan.pipelines.doctor import gpus
from cuda_cyclegan.pipelines.doctor.cuda_libraries import (
    examine_cuda_libraries,
    judged_copies,
    judged_packages,
)
from cuda_cyclegan.pipelines.doctor.gpus import Holder, examine_gpus, judged_gpu

CARD = CudaDevice(0, "NVIDIA A100", (8, 0), 80 << 30, 70 << 30, "570, CUDA 12.8", "0:1:0.0")
PACKAGE = CudnnCopy(Path("/site/nvidia/cudnn/lib"), "nvidia-cudnn-cu12")


class Copy(CudnnCopy):
    """A copy that need not be asked."""

    def version(self) -> str:
        return self.folder.name


def named(found_by: str, folder: str) -> CudnnCopy:
    return Copy(Path(folder), found_by)


def judged(copies: Sequence[CudnnCopy], *loaded: str) -> tuple[str, str]:
    [finding] = judged_copies(copies, [Path(folder) for folder in loaded], "9.19.0")
    return finding.state, f"{finding.words} > {finding.remedy}"


def test_the_copy_that_was_taken_is_named_with_the_reason_and_the_others() -> None:
    system = named("the system's loader", "/usr/lib/9.8.0")
    state, words = judged([PACKAGE, system], str(PACKAGE.folder))
    assert state == "ok"
    assert "9.19.0, /site/nvidia/cudnn/lib, by nvidia-cudnn-cu12" in words
    assert "not used: 9.8.0 in /usr/lib/9.8.0 (the system's loader)" in words


def test_another_version_in_the_loaders_path_is_a_warning() -> None:
    rival = named("LD_LIBRARY_PATH", "/opt/9.8.0")
    state, words = judged([PACKAGE, rival], str(PACKAGE.folder))
    assert state == "warning"
    assert words.endswith("> remove /opt/9.8.0 from LD_LIBRARY_PATH")
    state, _ = judged([PACKAGE, named("LD_LIBRARY_PATH", "/opt/9.19.0")], str(PACKAGE.folder))
    assert state == "ok", "the same version does no harm"


def test_a_copy_that_goes_before_the_package_is_a_warning() -> None:
    rival = named("LD_LIBRARY_PATH", "/opt/9.8.0")
    system = named("the system's loader", "/usr/lib/9.8.0")
    state, words = judged([system, rival], str(rival.folder))
    assert (state, "unless this copy is intended" in words) == ("warning", True)
    assert judged([rival], str(rival.folder))[0] == "ok", "the only one"


def test_parts_of_two_copies_are_a_failure() -> None:
    state, words = judged([PACKAGE], "/a", "/b")
    assert (state, "/a, /b" in words) == ("failure", True)


def test_packages_for_two_versions_of_cuda_are_a_warning() -> None:
    both = {"nvidia-cudnn-cu12": "9.8.0", "nvidia-cudnn-cu13": "9.19.0"}
    [finding] = judged_packages(both)
    assert finding.state == "warning"
    assert "pip uninstall nvidia-cudnn-cu12 nvidia-cudnn-cu13" in str(finding.remedy)
    assert list(judged_packages({"nvidia-cudnn-cu12": "9.8.0"})) == []


def test_copies_are_found_once_each_in_the_order_of_what_leads_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("site/torch/lib", "path", "empty"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "site" / "torch" / "__init__.py").touch()
    (tmp_path / "site" / "torch" / "lib" / LIBRARY).touch()
    (tmp_path / "path" / LIBRARY).touch()
    (tmp_path / "link").symlink_to(tmp_path / "path")
    folders = [str(tmp_path / name) for name in ("empty", "path", "link")]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(folders))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # a test before may have loaded it
    found = [copy for copy in cuda_packages.copies() if copy.folder.is_relative_to(tmp_path)]
    places = [(copy.folder.name, copy.found_by) for copy in found]
    assert places == [("path", "LD_LIBRARY_PATH"), ("lib", "PyTorch's bundle")]
    assert found[0].version() == "of unknown version", "an empty file is no library"


def test_folders_of_what_is_loaded_come_from_the_systems_own_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "7f10-7f11 r-xp 0000 fe:01 12 "
    maps = tmp_path / "maps"
    maps.write_text(
        f"{start} /opt/my libs/libcudnn.so.9\n{start} /opt/my libs/libcudnn_graph.so.9\n"
        f"{start} /usr/lib/libcudnn_cnn.so.9.8.0\n{start} /usr/lib/libc.so.6\n7f-7f rw-p 0 0 0\n"
    )
    monkeypatch.setattr(cuda_packages, "_MAPS", maps)
    assert cuda_packages.loaded() == [Path("/opt/my libs"), Path("/usr/lib")]
    assert cuda_packages.dotted(91900) == "9.19.0"


def test_a_card_says_who_holds_its_memory() -> None:
    mine = Holder(os.getpid(), "python", 6 << 30)
    finding = judged_gpu(CARD, [mine, Holder(10**8, "other", None)])
    assert finding.state == "ok"
    assert "70.0 of 80.0 GiB free, held by python (process" in finding.words
    assert "6.0 GiB, other (process 100000000)" in finding.words


def test_a_full_or_old_card_is_a_warning() -> None:
    full = CudaDevice(0, "A100", (8, 0), 80 << 30, 1 << 30, "570")
    assert judged_gpu(full, []).state == "warning"
    assert "not shown here" in judged_gpu(full, []).words
    old = CudaDevice(0, "V100", (7, 0), 16 << 30, None, "570")
    assert "its compute capability is below 7.5" in judged_gpu(old, []).words


def test_an_integrated_gpu_is_reported_with_the_memory_it_shares() -> None:
    orin = CudaDevice(0, "Orin", (8, 7), 7 << 30, None, "CUDA 13.0", is_integrated=True)
    finding = judged_gpu(orin, [])
    assert finding.state == "ok"
    assert finding.words.endswith("7.0 GiB shared with the CPU")


@pytest.mark.parametrize(
    ("number", "nvrtc", "frontend", "was_tested"),
    [
        (91900, "13.0", "1.26.0", True),
        (92801, "13.5", "1.26.0", True),
        (91900, "13.5", "1.26.0", False),
        (92801, "13.0", "1.26.0", False),
        (92801, "13.5", "1.20.0", False),
        (92800, "12.9", "1.26.0", False),
    ],
)
def test_versions_that_were_not_tested_together_are_reported(
    number: int, nvrtc: str, frontend: str, was_tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = SimpleNamespace(backend_version=lambda: number, __version__=frontend)
    compiler = SimpleNamespace(
        toolkit=lambda: nvrtc, headers=lambda: Path("/headers"), newest_chip=lambda: (12, 0)
    )
    monkeypatch.setitem(sys.modules, "cudnn", cudnn)
    monkeypatch.setitem(sys.modules, "cuda_cyclegan.engine.cuda.nvrtc", compiler)
    *_, finding = examine_cuda_libraries([(9, 0)])
    assert finding.subject == "CUDA versions"
    assert finding.state == "ok"
    assert f"NVRTC {nvrtc}, cuDNN's frontend {frontend}: " in finding.words
    verdict = finding.words.partition(": ")[2]
    others = "not tested together on a GPU (others were, such as cuDNN 9."
    assert verdict == "tested together on a GPU" if was_tested else verdict.startswith(others)


def test_a_card_that_is_there_and_not_used_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the package cuda-bindings is not installed: install it"
    monkeypatch.setattr(gpus, "cuda_devices", lambda: (CARD,))
    monkeypatch.setattr(gpus, "why_no_cuda", lambda: reason)
    first, second = examine_gpus()
    assert (first.state, first.remedy, second.state) == ("warning", "install it", "ok")


def test_nvrtc_that_is_older_than_a_card_is_a_warning() -> None:
    pytest.importorskip("cuda.bindings")
    [fitting] = [f for f in examine_cuda_libraries([(8, 0)]) if f.subject == "NVRTC"]
    [too_old] = [f for f in examine_cuda_libraries([(8, 0), (99, 0)]) if f.subject == "NVRTC"]
    assert fitting.state == "ok", fitting.words
    assert (too_old.state, "capability 99.0" in too_old.words) == ("warning", True)


@pytest.mark.parametrize("card", DESCRIBED.values(), ids=DESCRIBED)
def test_every_described_card_is_named_and_well(card: DescribedGpu) -> None:
    total = card.memory << 30
    found = CudaDevice(0, card.name, card.capability, total, total, "CUDA 12.8")
    finding = judged_gpu(found, [])
    assert finding.state == "ok"
    capability = ".".join(map(str, card.capability))
    assert f"{card.name}, compute capability {capability}, " in finding.words
    assert f"{card.memory}.0 of {card.memory}.0 GiB free" in finding.words
