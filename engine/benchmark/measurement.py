"""Results of a benchmark of one network on one device. Times in seconds, memory in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ..probe.gpus import Energy


@dataclass(frozen=True, slots=True)
class Budget:
    """Time limit in seconds, and whether to time every layer and the ceilings too.

    layers: whether layers and ceilings are timed.
    """

    seconds: float = 2.0
    layers: bool = True

    def runs(self, one: float, fewest: int, most: int) -> int:
        """Return how often to run work that takes `one` seconds."""
        return min(max(round(self.seconds / max(one, 1e-9)), fewest), most)


@dataclass(frozen=True, slots=True)
class Latency:
    """Time of one run of a batch, over many runs.

    median, p5, p95: seconds; the latter are the 5th and 95th percentile. runs: how many.
    """

    median: float
    p5: float
    p95: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> "Latency":
        """Return the latency of at least one time."""
        if len(times) == 1:
            return cls(times[0], times[0], times[0], 1)
        cuts = quantiles(times, n=20, method="inclusive")
        return cls(median(times), cuts[0], cuts[-1], len(times))


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured peak rates of this device: the roofline with which layers are compared.

    flops: per second, of a large matrix product. bandwidth: bytes per second of a large copy within
    its memory, read and written ones together.
    """

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One step of the compiled network.

    layer: of the graph. plan: how the device computes it, None if it has no choice. flops: of the
    layer's arithmetic as the network defines it, 0 if it is not a convolution. bytes: the least
    that must be read and written, None if that is not known. operation: of the step. seconds: of
    one run.
    """

    layer: str
    operation: str
    plan: str | None
    seconds: float
    flops: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory used. planned: known before any allocation, None if nothing was planned.

    taken: decrease of free memory afterwards, including what libraries keep.
    """

    planned: int | None
    taken: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One network at one patch shape, batch and precision on one device.

    batch: patches in one run, fewer than requested if memory was short. latency: of a run on the
    device. call: of a run from host memory and back. layers: in order; empty if not requested.
    flops: of one run. ceilings: None if not requested, or if they did not fit in memory. device:
    description. voxels: of one patch. memory: used by the network. energy: of the runs of
    `latency`, None if the GPU does not count it or they were too short. error: relative L2 of the
    first patch against fp32; None if that was not compared.
    """

    device: str
    batch: int
    voxels: int
    flops: int
    latency: Latency
    call: Latency
    memory: MemoryUse
    layers: tuple[LayerTime, ...] = ()
    ceilings: Ceilings | None = None
    energy: Energy | None = None
    error: float | None = None

    @property
    def joules_per_patch(self) -> float | None:
        """Energy of the GPU per patch, including other work on it."""
        patches = self.batch * self.latency.runs
        return self.energy.joules / patches if self.energy else None

    @property
    def patches_per_second(self) -> float:
        """Throughput by the median time."""
        return self.batch / self.latency.median

    @property
    def voxels_per_second(self) -> float:
        """Throughput in voxels of patches, including their overlap."""
        return self.voxels * self.patches_per_second
