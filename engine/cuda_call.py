"""The CUDA driver's bindings, and its return codes as errors."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import CudaError

driver: Any = import_module(
    "cuda.bindings.driver"
)  # the package's types are generated and incomplete

_STICKY = (
    "CONTAINED",
    "ILLEGAL_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "HARDWARE_STACK_ERROR",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "TENSOR_MEMORY_LEAK",
    "EXTERNAL_DEVICE",
    "MPS_CLIENT_TERMINATED",
    "ECC_UNCORRECTABLE",
    "NVLINK_UNCORRECTABLE",
    "CONTEXT_IS_DESTROYED",
    "ASSERT",
    "UNKNOWN",
)
_ADVICE = {
    "OUT_OF_MEMORY": "free device memory or lower --vram-limit",
    "NO_BINARY_FOR_GPU": "install CUDA packages that know this card",
    "UNSUPPORTED_PTX_VERSION": "update the NVIDIA driver",
    "SYSTEM_DRIVER_MISMATCH": "update the NVIDIA driver",
    "SYSTEM_NOT_READY": "restart the NVIDIA services of this machine",
}


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the driver; its result, or CudaError with the driver's own words."""
    try:
        status, *results = function(*arguments)
    except ValueError as error:  # a driver newer than the bindings may return what they cannot name
        advice = "update the CUDA packages, whose names for errors are older than the driver"
        raise CudaError(function.__name__, str(error), advice, is_sticky=True) from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise _error(function.__name__, status)
    return results[0] if len(results) == 1 else tuple(results)


def _error(name: str, status: Any) -> CudaError:
    _, text = driver.cuGetErrorString(status)
    code = str(status.name).removeprefix("CUDA_ERROR_")
    reason = f"{code}, {text.decode() if text else 'no explanation'}"
    is_sticky = code in _STICKY
    advice = "start this program again" if is_sticky else "run again with --device cpu"
    return CudaError(name, reason, _ADVICE.get(code, advice), is_sticky=is_sticky)
