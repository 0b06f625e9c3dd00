"""What a benchmark of one network on one device finds. Times in seconds, memory in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from ..probe.gpus import Energy


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to time, in seconds, and whether to time every layer and the ceilings too.

    layers: whether layers and ceilings are timed.
    """

    seconds: float = 2.0
    layers: bool = True

    def runs(self, one: float, fewest: int, most: int) -> int:
        """How often to run what takes `one` seconds."""
        return min(max(round(self.seconds / max(one, 1e-9)), fewest), most)


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one run of a batch takes, over many runs.

    median, p5, p95: seconds; the latter are the 5th and 95th percentile. runs: how many.
    """

    median: float
    p5: float
    p95: float
    runs: int

    @classmethod
    def of(cls, times: Sequence[float]) -> "Latency":
        """From at least one time."""
        if len(times) == 1:
            return cls(times[0], times[0], times[0], 1)
        cuts = quantiles(times, n=20, method="inclusive")
        return cls(median(times), cuts[0], cuts[-1], len(times))


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device does at most, measured on it: the roof that layers are held against.

    flops: of a large matrix product a second. bandwidth: bytes a second of a large copy within
    its memory, read and written ones together.
    """

    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One step of the compiled network.

    layer: of the graph. plan: how the device does it, None where it has no choice. flops: of the
    layer's arithmetic as the network defines it, 0 where it is no convolution. bytes: the least
    that must be read and written, None where that is not known. operation: what the step does.
    seconds: of one run.
    """

    layer: str
    operation: str
    plan: str | None
    seconds: float
    flops: int
    bytes: int | None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """planned: known before anything was allocated, None where nothing was planned.

    taken: what was gone from the free memory afterwards, with what libraries keep.
    """

    planned: int | None
    taken: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One network at one patch shape, batch and precision on one device.

    batch: patches in one run, fewer than asked for where memory was short. latency: of a run on the
    device. call: of a run from host memory and back. layers: in order; empty if not asked for.
    flops: of one run. ceilings: None if not asked for, or if there was no room to measure them.
    device: in words. voxels: of one patch. memory: what it held. energy: of the runs of `latency`,
    None where the card does not count it or they were over too soon. error: relative L2 of the
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
        """Of the card, whose other work counts too."""
        patches = self.batch * self.latency.runs
        return self.energy.joules / patches if self.energy else None

    @property
    def patches_per_second(self) -> float:
        """By the median."""
        return self.batch / self.latency.median

    @property
    def voxels_per_second(self) -> float:
        """Of patches, whose overlap is not taken off."""
        return self.voxels * self.patches_per_second
