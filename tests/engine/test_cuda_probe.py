"""The probe says in one sentence what is missing, and loads no CUDA package for it."""

import subprocess
import sys

import pytest

from cuda_cyclegan.engine import cuda_probe

INSTALLED = {
    "cuda-bindings": "12.9.1",
    "nvidia-cudnn-frontend": "1.20.0",
    "nvidia-cudnn-cu12": "9.8.0",
    "nvidia-cuda-nvrtc-cu12": "12.8.0",
    "nvidia-cuda-runtime-cu12": "12.8.0",
}
CARD = cuda_probe.CudaDevice(0, "NVIDIA T4", (7, 5), 16 << 30, None, "CUDA 12.8")


@pytest.fixture
def machine(monkeypatch):
    """A machine with a card on which all is well, to be spoilt by a test."""
    state = {"packages": dict(INSTALLED), "newest": 12080, "cards": [CARD]}
    monkeypatch.setattr(cuda_probe, "_driver", lambda: (None, state["newest"]))
    monkeypatch.setattr(cuda_probe, "_is_importable", lambda _: True)
    monkeypatch.setattr(cuda_probe, "_version", lambda name: state["packages"].get(name))
    monkeypatch.setattr(cuda_probe, "_devices", lambda *_: state["cards"])
    return state


@pytest.mark.usefixtures("machine")
def test_nothing_is_missing_on_a_machine_with_everything():
    assert cuda_probe.why_no_cuda() is None
    assert cuda_probe.cuda_devices() == (CARD,)


def test_cuda_13_has_packages_without_a_suffix(machine):
    machine["newest"] = 13000
    machine["packages"] = {
        "cuda-bindings": "13.0.1",
        "nvidia-cudnn-cu13": "9.12.0",
        "nvidia-cuda-nvrtc": "13.0.48",
        "nvidia-cuda-runtime": "13.0.48",
    }
    assert cuda_probe.why_no_cuda() is None


@pytest.mark.parametrize("package", ["nvidia-cudnn-cu12", "nvidia-cuda-nvrtc-cu12"])
def test_a_missing_library_is_named_with_what_needs_it(machine, package):
    del machine["packages"][package]
    obstacle = cuda_probe.why_no_cuda()
    assert package in obstacle
    assert "cuda-bindings 12.9.1" in obstacle
    assert 'install "cuda-cyclegan[cuda12]"' in obstacle


def test_a_driver_older_than_the_packages_is_told_with_both_versions(machine):
    machine["packages"]["cuda-bindings"] = "13.0.1"
    obstacle = cuda_probe.why_no_cuda()
    assert "supports CUDA 12.8" in obstacle
    assert "cuda-bindings 13.0.1 needs CUDA 13" in obstacle
    assert "cuda-cyclegan[cuda12]" in obstacle


@pytest.mark.parametrize("version", ["1.19.1", "1.27.0", "1.32.1"])
def test_a_frontend_that_is_too_old_or_too_new_is_told(machine, version):
    machine["packages"]["nvidia-cudnn-frontend"] = version
    assert f"{version} is installed, but one from 1.20 to 1.26" in cuda_probe.why_no_cuda()


def test_a_card_that_is_too_old_is_told(machine):
    machine["cards"] = [cuda_probe.CudaDevice(0, "Tesla V100", (7, 0), 1 << 34, None, "CUDA 12")]
    assert "7.5" in cuda_probe.why_no_cuda()


def test_the_probe_loads_no_cuda_package():
    code = (
        "import sys; before = set(sys.modules);"  # cuda-bindings has python itself load a part
        "from cuda_cyclegan.engine.cuda_probe import why_no_cuda; why_no_cuda();"
        "heavy = ('cuda', 'cudnn', 'torch', 'numpy');"
        "print([m for m in set(sys.modules) - before if m.split('.')[0] in heavy])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
