"""Memory that ran out is distinguished from other failures by each library's return codes.

Those of the driver are among the calls to a driver in host memory, in test_cuda_bindings.
"""

import pytest

pytest.importorskip("cuda.bindings", reason="the CUDA packages are not installed")

from support.cudnn_stand_in import cudnn_where_there_is_none

from cuda_cyclegan.engine.cuda import nvrtc
from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError, EngineError


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("failed with CUDNN_STATUS_ALLOC_FAILED, message: no", DeviceMemoryError),
        ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", DeviceMemoryError),
        ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;", DeviceMemoryError),
        ("CUDNN_STATUS_ALLOC_FAILED_NOT", CudaError),
        ("CUDNN_STATUS_NOT_SUPPORTED: this engine would run out of memory", CudaError),
    ],
)
def test_cudnn(words: str, error: type[EngineError]) -> None:
    def fail() -> None:
        raise RuntimeError(words)

    with cudnn_where_there_is_none():
        from cuda_cyclegan.engine.cuda.cudnn import checked

        with pytest.raises(error, match="cudnnCreate"):
            checked("cudnnCreate", fail)


@pytest.mark.parametrize(
    ("status", "error"),
    [("NVRTC_ERROR_OUT_OF_MEMORY", DeviceMemoryError), ("NVRTC_ERROR_INTERNAL_ERROR", CudaError)],
)
def test_nvrtc(status: str, error: type[EngineError], monkeypatch: pytest.MonkeyPatch) -> None:
    code = getattr(nvrtc.nvrtc.nvrtcResult, status)

    def nvrtcCompileProgram(*_: object) -> tuple[object]:  # noqa: N802
        return (code,)

    monkeypatch.setattr(nvrtc.nvrtc, "nvrtcCompileProgram", nvrtcCompileProgram)
    with pytest.raises(error, match="nvrtcCompileProgram"):
        nvrtc.compiled("pack", "fp16", (9, 0))
    assert bytes([32])[0] == 32, "the empty log was written over the interpreter's own blank"
