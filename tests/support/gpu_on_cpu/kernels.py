"""Kernels run lane by lane on the CPU."""

import ctypes
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from support.described_gpus import H200
from support.gpu_on_cpu.compiler import library_of, symbol_of
from support.gpu_on_cpu.streams import Stream

from cuda_cyclegan.engine.compiler.kernels import checks
from cuda_cyclegan.engine.compiler.kernels.launch import Launch
from cuda_cyclegan.engine.compiler.steps import ConvShape
from cuda_cyclegan.engine.network.layers import Triple
from cuda_cyclegan.engine.options import Precision

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class KernelFaultError(AssertionError):
    """A kernel that reads or writes memory that it does not have."""


class _Place(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("z", ctypes.c_int))


class _Outcome(ctypes.Structure):
    """Effects of a launch.

    used: bytes of a block's dynamic shared memory up to the last one that was written. fault:
    whether a lane was stopped at `address`. offset: of that address in the block's dynamic shared
    memory, or -1. block, thread: where.
    """

    _fields_ = (
        ("used", ctypes.c_int),
        ("fault", ctypes.c_int),
        ("offset", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("block", _Place),
        ("address", ctypes.c_void_p),
    )


def run(launch: Launch, precision: Precision, grid: Triple | None = None) -> int:
    """Carry out a launch whose addresses are those of host memory.

    grid: another than the launch's. Return the bytes of dynamic shared memory up to the last one
    that a block has written. Raises KernelFaultError.
    """
    library = _opened(launch.source, precision, launch.in_blocks)
    arguments = launch.arguments
    function = library[f"launch_{type(arguments).__name__}"]
    function.restype = _Outcome
    symbol = symbol_of(launch.source, launch.kernel)
    assert hasattr(library, symbol), (
        f"{launch.source}.cu has no kernel {launch.kernel}: declare it as "
        'extern "C" __global__, or list its template in `instances` of the spec.'
    )
    kernel, block = ctypes.cast(library[symbol], ctypes.c_void_p), _Place(*launch.block)
    place = _Place(*(grid or launch.grid))
    outcome = function(
        kernel, ctypes.byref(arguments), place, block, launch.shared, launch.cooperative
    )
    if outcome.fault:
        raise KernelFaultError(_words(launch, outcome))
    return outcome.used


def _words(launch: Launch, outcome: _Outcome) -> str:
    block = outcome.block
    where = f"thread {outcome.thread} of block {block.x}, {block.y}, {block.z}"
    what = f"address {outcome.address or 0:#x}, where there is no memory"
    if outcome.offset >= 0:
        what = (
            f"byte {outcome.offset:,} of its dynamic shared memory, of which its launch asks for "
            f"{launch.shared:,} bytes"
        )
    return f"Kernel {launch.kernel} goes to {what} ({where})."


@cache
def _opened(source: str, precision: Precision, in_blocks: bool) -> ctypes.PyDLL:
    """All kernels of a .cu file; one launch runs at a time."""
    return ctypes.PyDLL(str(library_of(source, precision, in_blocks=in_blocks)))


class Kernels:
    """Queue of kernels that run lane by lane, for one stored number and one described GPU."""

    gpu = H200

    def __init__(self, precision: Precision = "fp16") -> None:
        self.precision: Precision = precision

    def image_key(self, source: str) -> str:
        return f"image of {source}"

    def launch(self, stream: Stream, launch: Launch) -> None:
        """Queue a launch with its arguments as they are now."""
        arguments = type(launch.arguments).from_buffer_copy(launch.arguments)
        kept = replace(launch, arguments=arguments)
        stream.submit(lambda: self.run(kept))

    def run(self, launch: Launch) -> None:
        run(launch, self.precision)


def expected_sums(shape: ConvShape, source: Array, weight: Array, voxels: Array) -> Array:
    """Sums [2, voxels, K] in double at the voxels listed, of products and of their magnitudes."""
    sums = np.full((2, len(voxels), shape.target_channels), np.nan)
    operands = source.ctypes.data, weight.ctypes.data
    launch = checks.expect(shape, operands, voxels.ctypes.data, sums.ctypes.data, len(voxels))
    run(launch, shape.precision)
    return sums
