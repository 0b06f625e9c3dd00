"""Lanes: streams and memory by which several volumes are on the GPU at a time.

While the passes of one volume are computed, the next one is copied in and the one before is copied
out. Each lane has its own copy of what a volume enters and leaves by: the input, the output, rows
of voxels as they are stored, and the overflow flag. The maps between exist once, so passes of
different volumes follow each other on one stream.
"""

from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod

from ...compiler.blocks import BlockGrid
from ...compiler.kernels.launch import CLIPPED, OVERFLOW
from ...compiler.kernels.sliding_window import CLIPPED_BYTES
from ...compiler.program.memory import Arena, Lifetime, arrange
from ...compiler.tensors import PATCHES, TRANSLATED
from ...compiler.volume.volume_memory import (
    VOXELS_IN,
    VOXELS_OUT,
    VolumeMemory,
    in_device_pages,
)
from ...errors import DeviceMemoryError
from ...network.graph import Graph
from ...whole_volume import VOLUMES_AT_A_TIME
from ..driver import CapturedGraph, CudaEvent, Stream
from ..in_flight import InFlight
from .transfer import slot_voxels


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Number of lanes that fit next to a volume's maps, and the memory of each.

    count: 1 if two do not fit; its data is then in the arena of the maps. own: data of
    a lane in memory of its own. slot_bytes: of its pinned slots.
    """

    count: int
    own: Arena
    slot_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes of GPU memory of all lanes, besides the arena of the maps."""
        return self.count * in_device_pages(self.own.bytes)


def plan_lanes(memory: VolumeMemory, grid: BlockGrid, graph: Graph, budget: int) -> LanePlan:
    """Return the lanes for volumes of a grid within so many bytes of GPU memory.

    Volumes with maps in host memory have one lane: copies of these maps keep the GPU busy anyway.
    """
    voxels, slot = prod(grid.extents), slot_voxels(grid.extents)
    sizes = {
        PATCHES: 4 * graph.in_channels * voxels,
        TRANSLATED: 4 * graph.out_channels * voxels,
        VOXELS_IN: 4 * slot,
        VOXELS_OUT: 8 * slot,
        OVERFLOW: 4,
        CLIPPED: CLIPPED_BYTES,
    }
    own = arrange(Lifetime(name, size, 0, 0) for name, size in sizes.items())
    count = min(VOLUMES_AT_A_TIME, (budget - memory.device_bytes) // in_device_pages(own.bytes))
    if memory.host_bytes or count < 2:
        return LanePlan(1, Arena({}, 0), 4 * slot)
    return LanePlan(count, own, 4 * slot)


class Lane:
    """Streams, memory and graphs that serve one volume at a time.

    flight: streams and memory. arrived: event after what was copied to the GPU so far. own:
    addresses of the data that lies in memory of its own.
    """

    def __init__(self, opened: ExitStack) -> None:
        self.flight = InFlight(opened)
        self.arrived = opened.enter_context(CudaEvent())
        self.own: Mapping[str, int] = {}
        self._graphs: dict[Hashable, CapturedGraph] = {}
        self._captured = opened.enter_context(ExitStack())

    def queue_captured(self, stream: Stream, work: Hashable, queue: Callable[[], None]) -> None:
        """Queue work as one launch, which costs the host little.

        work: which work it is, so that the same is captured only once.
        """
        if (graph := self._graphs.get(work)) is None:
            graph = self._captured.enter_context(CapturedGraph(stream, queue))
            self._graphs[work] = graph
        graph.launch()

    def forget_graphs(self) -> None:
        """Close the graphs, which hold addresses of earlier volumes."""
        self._graphs.clear()
        self._captured.close()

    def release(self) -> None:
        """Free the GPU memory."""
        self.forget_graphs()
        self.flight.memory.release()

    def fit(self, plan: LanePlan) -> None:
        """Allocate what a plan needs beyond what is held. Raises DeviceMemoryError."""
        self.flight.pin(plan.slot_bytes)
        self.own = {}
        if size := plan.own.bytes:
            base = self.flight.memory.address_of(size)
            self.own = {name: base + offset for name, offset in plan.own.offsets.items()}


class Lanes:
    """Lanes of a GPU, opened when volumes need them, and kept from one grid to the next."""

    def __init__(self, opened: ExitStack) -> None:
        """opened: closes them."""
        self._opened = opened
        self._all: list[Lane] = []
        self._free: list[Lane] = []
        self._taken = 0
        self._plan: LanePlan = LanePlan(0, Arena({}, 0), 0)

    def arrange(self, plan: LanePlan) -> None:
        """Serve volumes of another grid from now on; no lane is taken.

        Raises DeviceMemoryError if there is no memory for one.
        """
        for lane in self._all[plan.count :]:
            lane.release()
        for lane in self._all:
            lane.forget_graphs()
        self._plan = plan
        self._free = self._all[: plan.count]
        if (lane := self.take()) is not None:
            self.return_lane(lane)

    def take(self) -> Lane | None:
        """Return a free lane; None if all are taken.

        Raises DeviceMemoryError if there is no memory for the first one.
        """
        if self._taken == self._plan.count:
            return None
        if not self._free:
            self._free.append(Lane(self._opened))
            self._all.append(self._free[-1])
        try:
            self._free[-1].fit(self._plan)
        except DeviceMemoryError:
            if not self._taken:
                raise
            self._plan = replace(self._plan, count=self._taken)
            return None
        self._taken += 1
        return self._free.pop()

    def return_lane(self, lane: Lane) -> None:
        """Make a lane free again, all of whose work is done."""
        self._taken -= 1
        self._free.append(lane)

    def release(self) -> None:
        """Free the GPU memory of all lanes; none is taken."""
        for lane in self._all:
            lane.release()
