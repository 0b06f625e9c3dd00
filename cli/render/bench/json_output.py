"""`bench --json`; its fields are a promise to scripts.

schema      this layout's name and version
program     version of cuda-cyclegan
date        ISO 8601 with offset
device      in words, with the versions of the libraries that computed
driver      of the card, or null
network     in words
setting     patch [D, H, W], batch, precision
measured    batch (fewer than asked for where memory was short), latency and call: each median, p5,
            p95 (seconds) and runs, of a run on the device, and of one from host memory and back;
            patches_per_second, voxels_per_second, flops of a run; memory: planned (null where
            nothing is) and taken, bytes; ceilings: flops and bandwidth a second, or null;
            joules_per_patch and average_watts of the card during the runs of latency, or null;
            error of bf16 on the CPU from fp32 (relative L2), else null
layers      in order, each with layer, operation, plan (null: there is no choice), seconds, flops
            and bytes (null: not known)
others      each with name, and either reason, if it came to nothing, or runs_on, is_pytorch
            (false: another cuDNN), latency, allocated and reserved (bytes, or null), difference
            (relative L2 error of the output against ours), ratio (its median by ours)

Of a sweep there are, in place of the last three: scan (extents, overlap); tried, each a setting
with tiles and either reason or seconds (of the scan), voxels_per_second (of the finished scan) and
measured; and proposed, the setting of the fastest.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from ....engine.benchmark.measurement import Measured
from ....engine.probe.gpus import cuda_devices
from ....pipelines.bench.measurement import Bench, Setting
from ....pipelines.bench.parameter_sweep import Scan, Tried
from ....pipelines.bench.rivals import Rival, RivalResult
from ....pipelines.program import program_version
from ....pipelines.report.codec import JsonObject
from ....pipelines.timestamps import iso_time
from ..terminal.settings import flagged

SCHEMA = "cuda-cyclegan/bench/1"


def of_measurement(bench: Bench, measured: Measured, results: Sequence[RivalResult]) -> JsonObject:
    """One measurement, and what it was held against."""
    return {
        **_head(bench, measured.device),
        "measured": _measured(measured),
        "layers": [asdict(layer) for layer in measured.layers],
        "others": [_other(result, measured) for result in results],
    }


def of_sweep(bench: Bench, rows: Sequence[Tried], fastest: Tried, scan: Scan) -> JsonObject:
    """All settings that were tried."""
    assert fastest.measured is not None  # only what ran is fastest
    return {
        **_head(bench, fastest.measured.device),
        "scan": asdict(scan),
        "tried": [_tried(row, scan) for row in rows],
        "proposed": _setting(fastest.setting),
    }


def _head(bench: Bench, device: str) -> JsonObject:
    index = bench.setting.device.index
    cards = {card.index: card.driver for card in cuda_devices()}
    return {
        "schema": SCHEMA,
        "program": program_version(),
        "date": iso_time(datetime.now(UTC)),
        "device": device,
        "driver": cards.get(index) if bench.setting.device.kind == "cuda" else None,
        "network": bench.subject.name,
        "setting": _setting(bench.setting),
    }


def _setting(setting: Setting) -> JsonObject:
    return {"patch": setting.patch, "batch": setting.batch, "precision": setting.precision}


def _measured(measured: Measured) -> JsonObject:
    return {
        "batch": measured.batch,
        "latency": asdict(measured.latency),
        "call": asdict(measured.call),
        "patches_per_second": measured.patches_per_second,
        "voxels_per_second": measured.voxels_per_second,
        "flops": measured.flops,
        "memory": asdict(measured.memory),
        "ceilings": asdict(measured.ceilings) if measured.ceilings else None,
        "error": measured.error,
        "joules_per_patch": measured.joules_per_patch,
        "average_watts": measured.energy.watts if measured.energy else None,
    }


def _other(result: RivalResult, measured: Measured) -> JsonObject:
    found = asdict(result)
    if isinstance(result, Rival):
        found["ratio"] = result.latency.median / measured.latency.median
    return found


def _tried(row: Tried, scan: Scan) -> JsonObject:
    found = {**_setting(row.setting), "tiles": row.tiles}
    if row.measured is None:
        return {**found, "reason": flagged(row.reason)}
    return {
        **found,
        "seconds": row.seconds,
        "voxels_per_second": row.voxels_per_second(scan),
        "measured": _measured(row.measured),
    }
