"""The reference patch: a fixed input, a network's output for it, and the check of that output.

The input can be made again in any language. With h(x) a 32-bit hash (lowbias32 by C. Wellons) and
H(x) = h(x) >> 16, voxel (z, y, x) of channel c with extents (D, H, W) and n its C-order index
in [C, D, H, W]:

    noise  = H(n)
    smooth = trilinear interpolation of H(2^31 + m) over a lattice of every 8th voxel, m being the
             C-order index in [C, D/8 + 2, H/8 + 2, W/8 + 2], in whole numbers, rounded down
    value  = (3 smooth + noise - 2^17) / 2^17

All steps are exact, and the values lie in [-1, 1).
"""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..cpu.openvino import open_openvino_generator
from ..cpu.openvino_support import has_bf16
from ..cpu.session import open_cpu_generator
from ..errors import DeviceUnavailableError, ModelFileError
from ..network.graph import Graph, Network, times
from ..network.graph_analysis import flops, held_bytes
from ..network.layers import FloatArray, Triple, triple
from ..options import Precision
from .model_file import Model

TOLERANCE = 1e-4
"""Relative L2 error up to which an output counts as the reference, both in float32 on a CPU."""

MOST_FLOPS = 1 << 43
MOST_BYTES = 4 << 30
"""Most cost of a reference: some minutes on a few cores, such as 128x128x128 on a wide generator,
or the 256x256x256 that a U-Net of eight levels needs at least.
"""

_ROUNDING: dict[Precision, float] = {"fp32": 1e-5, "tf32": 2.5e-3, "fp16": 5e-3, "bf16": 3e-2}
"""Error limits by precision; an H200 stayed below them with generators of 9 blocks (2026-11-21).

They are errors of the device alone: against float64 at 128^3, 103 networks on the CPU are at most
1.3e-6 off in ONNX Runtime, 2.7e-6 in OpenVINO, and 2.1e-6 in PyTorch in fp32, on a head-like patch
(tests/benchmarks/cpu_exactness.py, 2026-11-26).
"""

_SMALLEST_EXTENT = 32
_CELL = 8
_Hashes: TypeAlias = npt.NDArray[np.uint32]
_Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Verification:
    """Comparison of a model's network with its stored reference.

    relative_error: L2 norm of the difference over that of the reference output. hashes_match:
    whether the stored pair has the hashes that the card names. made_by: of the reference. extents:
    (D, H, W) of its patch.
    """

    relative_error: float
    hashes_match: bool
    made_by: Literal["training code", "cuda-cyclegan"]
    extents: Triple

    @property
    def passed(self) -> bool:
        """Whether the network computes the reference that the card names."""
        return self.hashes_match and self.relative_error <= TOLERANCE


def tolerance(precision: Precision) -> float:
    """Return the relative L2 error against the CPU that rounding in a precision explains."""
    return _ROUNDING[precision]


def check_reference_cost(graph: Graph, extents: Triple) -> None:
    """Raise ModelFileError if a reference of these extents would take the CPU too long."""
    work, held = flops(graph, extents), held_bytes(graph, extents)
    if work > MOST_FLOPS or held > MOST_BYTES:
        raise ModelFileError(
            f"A reference patch of {times(extents)} takes {work / 1e12:.1f} TFLOP and "
            f"{held / 2**30:.1f} GiB on this generator, more than the allowed "
            f"{MOST_FLOPS / 1e12:.1f} TFLOP or {MOST_BYTES >> 30} GiB; import the checkpoint "
            "again with a smaller one."
        )


def make_reference(network: Network) -> tuple[FloatArray, FloatArray]:
    """Return the fixed input and its translation on the CPU, both [1, C, D, H, W].

    Raises ModelFileError if the smallest valid input is too large for that.
    """
    extents = reference_extents(network.graph)
    check_reference_cost(network.graph, extents)
    patch = reference_input(network.graph.in_channels, extents)
    with open_cpu_generator(network) as generator:
        return patch, generator(patch)


def verify(model: Model) -> Verification:
    """Run the network on the stored input and compare with the stored output.

    Raises ModelFileError if that would take too long.
    """
    depth, height, width = model.reference_input.shape[2:]
    check_reference_cost(model.network.graph, (depth, height, width))
    with open_cpu_generator(model.network) as generator:
        output = generator(model.reference_input)
    stated = model.card.reference
    return Verification(
        relative_error=relative_error(output, model.reference_output),
        hashes_match=array_sha256(model.reference_input) == stated.input_sha256
        and array_sha256(model.reference_output) == stated.output_sha256,
        made_by=stated.made_by,
        extents=(depth, height, width),
    )


def bf16_error(model: Model) -> float | None:
    """Relative L2 error of the stored reference when this CPU computes it in bf16.

    None if the processor has no bf16, or if that would take too long.
    """
    depth, height, width = model.reference_input.shape[2:]
    with suppress(ModelFileError, DeviceUnavailableError):
        check_reference_cost(model.network.graph, (depth, height, width))
        if has_bf16():
            with open_openvino_generator(model.network, "bf16") as generator:
                return relative_error(generator(model.reference_input), model.reference_output)
    return None


def relative_error(output: FloatArray, reference: FloatArray) -> float:
    """Return the L2 norm of the difference over that of the reference, in float64."""
    difference = np.linalg.norm((output.astype(np.float64) - reference).ravel())
    size = np.linalg.norm(reference.astype(np.float64).ravel())
    return float(difference / max(float(size), 1e-12))


def array_sha256(array: FloatArray) -> str:
    """Return the hash of the values as little-endian float32 in C order, without the shape."""
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest()


def reference_extents(graph: Graph) -> Triple:
    """Return the smallest multiples of the stride from 32 on, or the only valid extents."""
    if graph.patch:
        return graph.patch
    return triple(-(-_SMALLEST_EXTENT // step) * step for step in graph.stride)


def reference_input(channels: int, extents: Triple) -> FloatArray:
    """Return the fixed input [1, channels, D, H, W] in [-1, 1), as defined in the module."""
    noise = _hashes((channels, *extents), 0)
    smooth = _hashes((channels, *(extent // _CELL + 2 for extent in extents)), 1 << 31)
    for axis, extent in enumerate(extents, start=1):
        smooth = _interpolated(smooth, axis, extent)
    values = 3 * (smooth // _CELL**3) + noise - (1 << 17)
    return (values / (1 << 17)).astype(np.float32)[np.newaxis]


def _hashes(shape: tuple[int, ...], start: int) -> _Integers:
    """Return the upper 16 bits of the hash of start, start + 1, ... in C order."""
    count = int(np.prod(shape))
    mixed: _Hashes = np.arange(start, start + count, dtype=np.uint64).astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    mixed ^= mixed >> np.uint32(16)
    return (mixed >> np.uint32(16)).astype(np.int64).reshape(shape)


def _interpolated(lattice: _Integers, axis: int, extent: int) -> _Integers:
    """Interpolate between lattice planes along an axis; the result is times the cell's edge."""
    cell, rest = np.divmod(np.arange(extent), _CELL)
    along = [1] * lattice.ndim
    along[axis] = extent
    weight = rest.reshape(along)
    low, high = lattice.take(cell, axis), lattice.take(cell + 1, axis)
    return low * (_CELL - weight) + high * weight
