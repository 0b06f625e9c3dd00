"""Calls of everything that the engine uses of the CUDA driver, of one with host memory.

A program of its own, since a process that has met such a driver keeps it.
"""

import ctypes
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuda_cyclegan.engine.compiler.gpu_properties import GpuProperties
from cuda_cyclegan.engine.cuda import driver as cuda_call
from cuda_cyclegan.engine.cuda import driver as cuda_driver
from cuda_cyclegan.engine.cuda.volume import held_memory
from cuda_cyclegan.engine.errors import CudaError, DeviceMemoryError
from cuda_cyclegan.engine.probe.gpus import cuda_devices


class Listener:
    """The driver's bindings; keeps the names of all functions that were asked for."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._bindings, name)


class Arguments(ctypes.Structure):
    _fields_ = (("target", ctypes.c_uint64),)


def main() -> None:
    """Print the names of all functions that were called."""
    listener = cuda_call.driver = cuda_driver.driver = Listener(cuda_call.driver)
    held_memory.driver = listener
    context: Any = cuda_driver.Context(0)
    with context, cuda_driver.Stream() as stream:
        assert context.properties == GpuProperties((9, 0), 132, 60 << 20, 227 << 10, 228 << 10)
        assert (context.name, context.bus) == ("Card in memory", "0000:01:00.0")
        assert context.memory == (70 << 30, 80 << 30)
        assert context.driver_version == int(os.environ["DRIVER_VERSION"])
        assert [gpu.name for gpu in cuda_devices()] == [context.name]
        copies(stream)
        refusal()
        kernels(stream, context.properties)
        events(stream)
    names = [name for name in listener.names if name.startswith("cu")]
    print(json.dumps(names))


def copies(stream: cuda_driver.Stream) -> None:
    with cuda_driver.DeviceBuffer(64) as device, cuda_driver.PinnedBuffer(16) as pinned:
        host = pinned.array((4,))
        host[:] = 1, 2, 3, 4
        stream.upload(device.address, host.ctypes.data, 16)
        stream.copy(device.address + 32, device.address, 16)
        stream.fill(device.address + 32, 0, 4)
        host[:] = -1
        stream.download(host.ctypes.data, device.address + 32, 16)
        stream.wait()
        assert host.tolist() == [0, 2, 3, 4]
        stream.upload_now(device.address, b"\0\0\x80\x3f")
        assert at(device.address, ctypes.c_float) == [1]
    with held_memory.pinned_maps(16) as address:
        assert at(address, ctypes.c_float) == [0]


def refusal() -> None:
    """Device and pinned memory alike; the driver's own words are in the cause."""
    for buffer, size in ((cuda_driver.DeviceBuffer, 80 << 30), (cuda_driver.PinnedBuffer, 1 << 40)):
        with pytest.raises(DeviceMemoryError) as refused:
            buffer(size)
        assert "out of memory" in str(refused.value.__cause__)
        assert refused.value.wanted == size
        assert f"{size >> 20} MiB" in str(refused.value)
        assert refused.value.free is not None
        assert f"{round(refused.value.free / 2**20)} MiB are free" in str(refused.value)


def kernels(stream: cuda_driver.Stream, gpu: GpuProperties) -> None:
    numbers = np.zeros(8, np.uint32)
    arguments = Arguments(numbers.ctypes.data)
    with cuda_driver.CudaModule(b"\x7fELF", gpu) as module:
        kernel = module.kernel("pack")
        assert cuda_driver.concurrent_blocks(kernel, (8, 4, 2), 128, gpu) == 2 * 132
        with pytest.raises(
            CudaError, match="no block of 2048 threads and 1 bytes of shared memory"
        ):
            cuda_driver.concurrent_blocks(kernel, (32, 8, 8), 1, gpu)
        for cooperative in (False, True):
            numbers[:] = 0
            stream.launch(kernel, (1, 2, 3), (4, 5, 6), 7, arguments, cooperative=cooperative)
            attributes = 2 * cooperative  # of CUlaunchAttributeID
            assert numbers.tolist() == [1, 2, 3, 4, 5, 6, 7, attributes]
        with cuda_driver.CapturedGraph(stream, lambda: None) as graph:
            graph.launch()
        failure(stream, lambda: stream.launch(kernel, (0, 1, 1), (1, 1, 1), 0, arguments))


def failure(stream: cuda_driver.Stream, launch: Callable[[], None]) -> None:
    """Report the launch's own error, which the bindings cannot name, not that of the capture."""
    with pytest.raises(CudaError, match="9999") as failed:
        cuda_driver.CapturedGraph(stream, launch).__enter__()
    assert (failed.value.call, failed.value.is_sticky) == ("cuLaunchKernelEx", True)


def events(stream: cuda_driver.Stream) -> None:
    with cuda_driver.CudaEvent() as first, cuda_driver.CudaEvent() as second:
        first.record(stream)
        stream.after(first)
        second.record(stream)
        second.wait()
        assert second.seconds_since(first) == 0.0015
    queued: list[int] = []
    assert stream.times(lambda: queued.append(1), 2) == [0.0015, 0.0015]
    assert len(queued) == 3


def at(address: int, kind: Any) -> list[float]:
    return list((kind * 1).from_address(address))


if __name__ == "__main__":
    main()
