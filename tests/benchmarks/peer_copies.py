"""Copies between two GPUs, as one volume split over both would need.

    python tests/benchmarks/peer_copies.py

"one way": copies in a row. "exchange": both GPUs send a halo, and neither continues before it has
the other's. "hop": a copy of 4 KiB, for whose answer the GPU waits. "volume": the 23 exchanges of a
ResNet of 9 blocks (width 32, fp16) split in two along its first axis. "host": time to queue them.
GB/s are per direction. Medians of work that is queued before the GPUs begin it; if the host is too
slow for that, their times include its own. Needs two GPUs and cuda-bindings, not the program.
"""

import ctypes
import json
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

RESULT = Path(__file__).parent / "results" / "peer_copies.json"
MIB, ROUNDS = 1 << 20, 64
HOP, SIZES = 4 << 10, (MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
LARGEST, GATE = 160 * MIB, 512 * MIB
VOLUMES = ((256, 256, 180), (512, 512, 400), (1024, 1024, 800))
try:
    driver: Any = import_module("cuda.bindings.driver")
    found: int = 0 if int(driver.cuInit(0)[0]) else driver.cuDeviceGetCount()[1]
except (ImportError, RuntimeError):  # there are no bindings or no driver
    found = 0


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    status, *results = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__}: {status.name}")
    return results[0] if results else None


class Gpu:
    """Stream, events and memory of a GPU; pinned: two slots of host memory that it writes."""

    def __init__(self, index: int) -> None:
        self.device = call(driver.cuDeviceGet, index)
        self.context = call(driver.cuDevicePrimaryCtxRetain, self.device)
        call(driver.cuCtxSetCurrent, self.context)
        self.stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.source, self.target = (call(driver.cuMemAlloc, LARGEST) for _ in range(2))
        self.gate = call(driver.cuMemAlloc, GATE)
        pinned = int(call(driver.cuMemHostAlloc, 2 * LARGEST, driver.CU_MEMHOSTALLOC_PORTABLE))
        self.pinned = (pinned, pinned + LARGEST)
        self.sent, self.start, self.stop = (call(driver.cuEventCreate, 0) for _ in range(3))

    def queue(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Queue work on the GPU's stream, which these functions take last."""
        call(driver.cuCtxSetCurrent, self.context)
        call(function, *arguments, self.stream)


def send(pairs: list[tuple[Gpu, Gpu]], size: int, slot: int | None) -> None:
    """Queue a copy for each giver and taker; slot: of pinned host memory, None for peer copies."""
    for giver, taker in pairs:
        if slot is None:
            ends = taker.target, taker.context, giver.source, giver.context
            giver.queue(driver.cuMemcpyPeerAsync, *ends, size)
        else:
            giver.queue(driver.cuMemcpyDtoHAsync, giver.pinned[slot], giver.source, size)
        giver.queue(driver.cuEventRecord, giver.sent)
    for giver, taker in pairs:
        call(driver.cuStreamWaitEvent, taker.stream, giver.sent, 0)
        if slot is not None:
            taker.queue(driver.cuMemcpyHtoDAsync, taker.target, giver.pinned[slot], size)


def timed(one: Gpu, other: Gpu, queue: Callable[[], None]) -> tuple[float, float]:
    """Return the microseconds of the GPUs and of the host for the work that `queue` queues."""
    for _ in range(32):  # so that all is queued before the GPUs begin
        one.queue(driver.cuMemsetD8Async, one.gate, 0, GATE)
    one.queue(driver.cuEventRecord, one.start)
    call(driver.cuStreamWaitEvent, other.stream, one.start, 0)
    begin = perf_counter()
    queue()
    host = 1e6 * (perf_counter() - begin)
    other.queue(driver.cuEventRecord, other.sent)
    call(driver.cuStreamWaitEvent, one.stream, other.sent, 0)
    one.queue(driver.cuEventRecord, one.stop)
    call(driver.cuEventSynchronize, one.stop)
    return 1e3 * call(driver.cuEventElapsedTime, one.start, one.stop), host


def measured(one: Gpu, other: Gpu, byte: int, *, is_pinned: bool = False) -> dict[str, Any]:
    """Measure copies, and test that bytes arrive; byte: one that is not in the memory yet."""
    there, back = (one, other), (other, one)
    one.queue(driver.cuMemsetD8Async, one.source, byte, MIB)
    send([there], MIB, 0 if is_pinned else None)
    other.queue(driver.cuMemcpyDtoHAsync, other.pinned[0], other.target, MIB)
    call(driver.cuStreamSynchronize, other.stream)
    is_right = ctypes.string_at(other.pinned[0], MIB) == bytes([byte]) * MIB

    def times(sizes: list[int], *steps: list[tuple[Gpu, Gpu]]) -> tuple[float, float]:
        def queue() -> None:
            for number, size in enumerate(sizes):
                for pairs in steps:
                    send(pairs, size, number % 2 if is_pinned else None)

        gpu, host = zip(*(timed(one, other, queue) for _ in range(6)), strict=True)
        return median(gpu[1:]) / len(sizes), median(host[1:]) / len(sizes)

    hop, _ = times([HOP] * ROUNDS, [there], [back])
    row: dict[str, Any] = {"right bytes": is_right, "hop us": round(hop / 2, 1)}
    for size in SIZES:
        copy, _ = times([size] * ROUNDS, [there])
        both, host = times([size] * ROUNDS, [there, back])
        rates = {"one way GB/s": size / copy / 1e3, "exchange GB/s": size / both / 1e3}
        rates |= {"exchange us": both, "host us": host}
        row[f"{size >> 10} KiB"] = {name: round(value, 1) for name, value in rates.items()}
    for depth, height, width in VOLUMES:
        full = 2 * 32 * height * width  # bytes of a plane that the next layer reads
        halos = [full, full // 2, *[full // 4] * 19, full // 2, 3 * full]
        both, _ = times(halos, [there, back])
        row[f"volume {depth}x{height}x{width} ms"] = round(len(halos) * both / 1e3, 2)
    return row


def main() -> None:
    if found < 2:
        raise SystemExit(f"Copies between GPUs need two of them; this machine has {found}.")
    one, other = Gpu(0), Gpu(1)
    atomics = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    record: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "card": call(driver.cuDeviceGetName, 128, one.device).split(b"\0")[0].decode(),
        "access": bool(call(driver.cuDeviceCanAccessPeer, one.device, other.device)),
        "NVLink": bool(call(driver.cuDeviceGetP2PAttribute, atomics, one.device, other.device)),
        "pinned host memory": measured(one, other, 1, is_pinned=True),
        "peer copies, access disabled": measured(one, other, 2),
    }
    if record["access"]:
        for gpu, peer in ((one, other), (other, one)):
            call(driver.cuCtxSetCurrent, gpu.context)
            call(driver.cuCtxEnablePeerAccess, peer.context, 0)
        record["peer copies, access enabled"] = measured(one, other, 3)
    RESULT.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
