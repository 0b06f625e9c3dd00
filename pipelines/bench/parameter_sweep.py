"""Search for the patch, batch and precision that translate a scan fastest on a device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from ...engine.benchmark.measurement import Measured
from ...engine.devices import Device
from ...engine.errors import CudaError, DeviceMemoryError, EngineError
from ...engine.network.graph import Graph, Network
from ...engine.network.layers import Triple
from ...engine.options import Precision
from ..study.patches import cover
from .measurement import Bench, Setting, measure

_EDGES = (64, 96, 128, 160, 192)
_BATCHES = (1, 2, 4, 8, 16)
_WORTH = 1.02
"""Speedup that a batch must have over one half as large for a still larger one to be tried."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Scan to translate. extents: (D, H, W).

    overlap: share of its edge that a patch shares with its neighbour.
    """

    extents: Triple = (192, 256, 256)
    overlap: float = 0.25


@dataclass(frozen=True, slots=True)
class Tried:
    """Result for one setting. measured: measurement, None if it cannot run.

    setting: the setting. patches: number of patches of the scan. reason: reason why it cannot run.
    seconds: time of the network for all patches. is_too_large: whether it exceeds the memory.
    """

    setting: Setting
    patches: int
    measured: Measured | None = None
    reason: str = ""
    seconds: float = 0.0
    is_too_large: bool = False

    def voxels_per_second(self, scan: Scan) -> float:
        """Return the throughput in voxels of the finished scan, without overlaps and padding of an
        incomplete batch.
        """
        return prod(scan.extents) / self.seconds if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidate values, tried in all combinations that are worthwhile.

    patches: (D, H, W). batches: patches in one run. precisions: precisions of the arithmetic.
    """

    patches: tuple[Triple, ...]
    batches: tuple[int, ...]
    precisions: tuple[Precision, ...]


def candidates(
    graph: Graph,
    device: Device,
    own: Triple,
    batch: int | None,
    precision: Precision | None,
    longest: int,
) -> Candidates:
    """Return the requested values, and the usual candidates where a value is None.

    own: patch that is always tried. longest: longest edge of other patches, 0 for no others. A GPU
    does not try fp32, and the CPU tries nothing else, unless requested.
    """
    usual = [(edge, edge, edge) for edge in _EDGES if edge <= longest]
    patches = {own, *(patch for patch in usual if graph.takes_patch(patch))}
    usual_ones: tuple[Precision, ...] = (device.default_precision,)
    if device.kind == "cuda":
        usual_ones = tuple(each for each in device.precisions if each != "fp32")
    return Candidates(
        patches=tuple(sorted(patches, key=prod)),
        batches=(batch,) if batch else _BATCHES,
        precisions=(precision,) if precision else usual_ones,
    )


def sweep(bench: Bench, network: Network, found: Candidates, scan: Scan) -> Iterator[Tried]:
    """Yield each setting once measured; larger ones are skipped if smaller ones did not fit."""
    for precision in found.precisions:
        for patch in found.patches:
            setting = replace(bench.setting, patch=patch, precision=precision)
            smallest: Tried | None = None
            for row in _batches(replace(bench, setting=setting), network, found.batches, scan):
                smallest = smallest or row
                yield row
            if smallest and smallest.is_too_large:
                break


def best(rows: Iterable[Tried], scan: Scan) -> Tried | None:
    """Return the fastest setting; None if none could run."""
    ran = [row for row in rows if row.measured]
    return max(ran, key=lambda row: row.voxels_per_second(scan), default=None)


def _batches(bench: Bench, network: Network, batches: Sequence[int], scan: Scan) -> Iterator[Tried]:
    fastest = 0.0
    for batch in batches:
        setting = replace(bench.setting, batch=batch)
        row = _tried(replace(bench, setting=setting), network, scan)
        yield row
        rate = row.measured.patches_per_second if row.measured else 0.0
        if rate < _WORTH * fastest or not row.measured:
            return
        fastest = rate


def _tried(bench: Bench, network: Network, scan: Scan) -> Tried:
    setting = bench.setting
    patches = len(cover(scan.extents, setting.patch, scan.overlap, network.graph.stride))
    try:
        measured = measure(bench, network).measured
    except EngineError as error:
        if isinstance(error, CudaError) and error.is_sticky:
            raise
        is_too_large = isinstance(error, DeviceMemoryError)
        return Tried(setting, patches, reason=str(error), is_too_large=is_too_large)
    if measured.batch < setting.batch:
        reason = f"memory suffices for {measured.batch} at a time only"
        return Tried(setting, patches, reason=reason, is_too_large=True)
    runs = ceil(patches / setting.batch)
    return Tried(setting, patches, measured, seconds=runs * measured.latency.median)
