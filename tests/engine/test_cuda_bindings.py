"""The installed cuda-bindings, of CUDA 12 or 13, have every name that the engine asks them for."""

import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from cuda_cyclegan.engine import nvrtc

ENGINE = Path(nvrtc.__file__).parent


@pytest.mark.parametrize("library", ["driver", "nvrtc"])
def test_all_names_are_there(library: str) -> None:
    bindings = import_module(f"cuda.bindings.{library}")
    text = "\n".join(path.read_text() for path in ENGINE.glob("*.py"))
    paths = set(re.findall(rf"\b{library}\.((?:cu|CU|nvrtc)\w+(?:\.[A-Z_0-9]+)?)", text))
    assert len(paths) > 5
    for path in paths:
        place = bindings
        for name in path.split("."):
            place = getattr(place, name)


def test_calls_without_a_card_fail_with_the_drivers_words_and_not_in_python() -> None:
    """Each of these would raise TypeError if its signature had changed."""
    from cuda_cyclegan.engine import cuda_driver
    from cuda_cyclegan.engine.cuda_probe import why_no_cuda
    from cuda_cyclegan.engine.errors import CudaError

    if why_no_cuda() is None:
        pytest.skip("there is a card")
    for owner in (cuda_driver.Context(0), cuda_driver.Stream(), cuda_driver.Event()):
        with pytest.raises((CudaError, RuntimeError)):
            owner.__enter__()
    for owner in (cuda_driver.DeviceBuffer(8), cuda_driver.PinnedBuffer(8)):
        with pytest.raises((CudaError, RuntimeError)):
            owner.__enter__()
