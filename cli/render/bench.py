"""Benchmarks as text and as JSON, whose fields are a stable interface for scripts.

schema      this layout's name and version
program     version of cuda-cyclegan
date        ISO 8601 with offset
device      in words, with the versions of the libraries that computed
driver      of the GPU, or null
network     in words
setting     patch [D, H, W], batch, precision
measured    batch (fewer than requested if memory was short), latency and call: each median, p5,
            p95 (seconds) and runs, of a run on the device, and of one from host memory and back;
            patches_per_second, voxels_per_second, flops of a run; memory: planned (null where
            nothing is) and taken, bytes; ceilings: flops and bandwidth a second, or null;
            joules_per_patch and average_watts of the GPU during the runs of latency, or null;
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

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...engine.benchmark.measurement import Ceilings, Latency, Measured
from ...engine.decoding import encode_record
from ...engine.probe.gpus import cuda_devices
from ...pipelines.bench.layers import LayerGroup, grouped
from ...pipelines.bench.measurement import Bench, Setting
from ...pipelines.bench.parameter_sweep import Scan, Tried, best
from ...pipelines.bench.rivals import FailedRival, Rival, RivalResult
from ...pipelines.program import program_version
from ...pipelines.timestamps import iso_time
from .tables import Row, TextTable
from .text import bar, counted, digits, flagged, memory, printable, quantity, scaled

BAR = 12
"""Columns of the longest bar."""

_LABEL = 15


def heading(bench: Bench) -> str:
    """Return a heading that names what is measured."""
    return f"{printable(bench.subject.name)}; patch {named(bench.setting)}"


def named(setting: Setting) -> str:
    """Format a setting."""
    patch = "x".join(map(str, setting.patch))
    return f"{patch}, batch {setting.batch}, {setting.precision}"


def milliseconds(value: float) -> str:
    """Format seconds as milliseconds: 0.056, 5.60, 56.0."""
    return f"{value * 1e3:.3f}" if value < 0.9995e-3 else digits(value * 1e3)


def facts(measured: Measured) -> Iterator[str]:
    """Return the figures of the whole network."""
    ceilings, rate = measured.ceilings, measured.flops / measured.latency.median
    yield printable(measured.device)
    yield ""
    yield _fact("latency", _latency(measured.latency))
    if measured.call != measured.latency:
        yield _fact(
            "with copies", f"{_latency(measured.call)}; with transfers from and to host memory"
        )
    yield _fact(
        "throughput",
        f"{digits(measured.patches_per_second)} patches/s, "
        f"{scaled(measured.voxels_per_second)} voxels/s",
    )
    if (energy := measured.energy) and (joules := measured.joules_per_patch):
        yield _fact("energy", f"{digits(joules)} J per patch, {energy.watts:.0f} W on average")
    arithmetic = f"{quantity(measured.flops, 'FLOP')} a run, {quantity(rate, 'FLOP/s')}"
    if ceilings:
        arithmetic += f", {rate / ceilings.flops:.0%} of the peak"
    yield _fact("arithmetic", arithmetic)
    if ceilings:
        yield _fact(
            "peaks",
            f"{quantity(ceilings.flops, 'FLOP/s')} in a matrix product, "
            f"{quantity(ceilings.bandwidth, 'B/s')} in a copy",
        )
    if measured.error is not None:
        yield _fact("error", f"{measured.error:.1e} relative to fp32, with noise as input")
    yield _fact("memory", _memory(measured))


def layers(measured: Measured, columns: int | None) -> Iterator[str]:
    """Return the table of layers, slowest first; equal ones share a row."""
    groups = grouped(measured.layers)
    if not groups:
        return
    total = sum(group.seconds for group in groups)
    longest = groups[0].seconds
    rows = [_layer(group, total, longest, measured.ceilings) for group in groups]
    plans = "plan" if any(row.figures[-1] for row in rows) else ""
    head = Row("layer", ["ms", "share", " " * BAR, "FLOP/s", "peak", "B/s", "peak", plans])
    last = Row("sum", [milliseconds(total), *[""] * 7])
    yield ""
    yield from TextTable(head, rows, last).lines(columns)


def layer_notes(measured: Measured) -> Iterator[str]:
    """Return notes on the table of layers."""
    groups, ceilings = grouped(measured.layers), measured.ceilings
    if not groups:
        return
    yield (
        "Each layer is timed alone; FLOP/s count the network's arithmetic, and B/s the minimum "
        "that must be read and written"
    )
    if ceilings is None:
        yield (
            "The peaks of this device were not measured for lack of memory, so no shares are shown"
        )
        return
    if any((group.byte_rate or 0) > ceilings.bandwidth for group in groups):
        yield "More than 100% of the copy bandwidth: the data came from cache"
    if any((group.flop_rate or 0) > ceilings.flops for group in groups):
        yield (
            "More than 100% of the matrix product's FLOP/s: fp32 is faster as split fp16, or the "
            "machine was busy while the product was measured"
        )


def _layer(group: LayerGroup, total: float, longest: float, ceilings: Ceilings | None) -> Row:
    flops, moved = group.flop_rate, group.byte_rate
    return Row(
        printable(group.name),
        [
            milliseconds(group.seconds),
            f"{group.seconds / total:.1%}",
            f"{bar(group.seconds / longest, BAR):<{BAR}}",
            scaled(flops) if flops else "",
            f"{flops / ceilings.flops:.0%}" if flops and ceilings else "",
            scaled(moved) if moved else "",
            f"{moved / ceilings.bandwidth:.0%}" if moved and ceilings else "",
            _engine(group.plan or ""),
        ],
    )


def _engine(plan: str) -> str:
    """Return the name of a plan for the table, without its knobs, which only the JSON holds."""
    return plan.split("_k")[0]


def _latency(latency: Latency) -> str:
    return (
        f"{milliseconds(latency.median)} ms, 90% within {milliseconds(latency.p5)} to "
        f"{milliseconds(latency.p95)} ms; {latency.runs} runs"
    )


def _memory(measured: Measured) -> str:
    planned, taken = measured.memory.planned, memory(measured.memory.taken)
    if planned is None:
        return f"{taken} of RAM used; none is planned in advance"
    return f"{memory(planned)} planned, {taken} used on the GPU, including the loaded kernels"


def _fact(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


_HEAD = ["ms", "p5", "p95", "x ours", "tensors", "taken", "differs", ""]


def table(
    bench: Bench, measured: Measured, results: Sequence[RivalResult], columns: int | None
) -> Iterator[str]:
    """Return the table of programs, this one first."""
    if not results:
        return
    own = measured.latency
    ran = [result for result in results if isinstance(result, Rival)]
    slowest = max(latency.median for latency in (own, *(rival.latency for rival in ran)))
    rows = [
        Row(
            f"cuda-cyclegan, {bench.setting.precision}",
            [
                *_times(own, own),
                *map(_bytes, (measured.memory.planned, measured.memory.taken)),
                "",
                bar(own.median / slowest, BAR),
            ],
        ),
        *(_row(result, own, slowest) for result in results),
    ]
    yield ""
    yield from TextTable(Row("", _HEAD), rows).lines(columns)


def notes(measured: Measured, results: Sequence[RivalResult]) -> Iterator[str]:
    """Return notes on columns, devices, and programs that did not run."""
    ran = [result for result in results if isinstance(result, Rival)]
    modes = [rival for rival in ran if rival.is_pytorch]
    if modes:
        fastest = min(modes, key=lambda rival: rival.latency.median)
        ratio = fastest.latency.median / measured.latency.median
        yield (
            f"PyTorch's fastest, {fastest.name}, takes {ratio:.2f} times as long "
            f"({fastest.runs_on})"
        )
    for rival in ran:
        if not rival.is_pytorch:
            yield f"{printable(rival.name)}: {printable(rival.runs_on)}"
    if ran:
        yield (
            "tensors: peak of the network's tensors, not counted in CUDA graphs; taken: including "
            "what the library caches; differs: relative L2 error of the output compared with ours"
        )
    for result in results:
        if isinstance(result, FailedRival):
            yield f"{printable(result.name)}: {printable(flagged(result.reason))}"


def _row(result: RivalResult, own: Latency, slowest: float) -> Row:
    if isinstance(result, FailedRival):
        return Row(printable(result.name), [*[""] * (len(_HEAD) - 1), "failed"])
    return Row(
        printable(result.name),
        [
            *_times(result.latency, own),
            *map(_bytes, (result.allocated, result.reserved)),
            f"{result.difference:.0e}",
            bar(result.latency.median / slowest, BAR),
        ],
    )


def _times(latency: Latency, own: Latency) -> list[str]:
    times = [milliseconds(value) for value in (latency.median, latency.p5, latency.p95)]
    return [*times, digits(latency.median / own.median)]


def _bytes(size: int | None) -> str:
    return "" if size is None else memory(size)


def sweep_line(row: Tried, scan: Scan) -> str:
    """Format a setting and its outcome."""
    outcome = f"{scaled(row.voxels_per_second(scan))} voxels/s" if row.measured else row.reason
    return f"{named(row.setting)}: {printable(flagged(outcome))}"


def sweep_table(rows: Sequence[Tried], scan: Scan, columns: int | None) -> Iterator[str]:
    """Yield all settings; columns: of the terminal, None for no limit. Some of them ran."""
    ran = [row for row in rows if row.measured]
    highest = max(row.voxels_per_second(scan) for row in ran)
    head = ["ms/run", "patches/s", "patches", "ms/scan", "memory", "voxels/s", ""]
    yield from TextTable(
        Row("patch, batch, precision", head), [_sweep_row(row, scan, highest) for row in rows]
    ).lines(columns)


def _sweep_row(row: Tried, scan: Scan, highest: float) -> Row:
    measured, rate = row.measured, row.voxels_per_second(scan)
    if measured is None:
        return Row(
            named(row.setting), [*[""] * 6, "too little memory" if row.is_too_large else "failed"]
        )
    held = measured.memory.planned or measured.memory.taken
    return Row(
        named(row.setting),
        [
            milliseconds(measured.latency.median),
            digits(measured.patches_per_second),
            str(row.patches),
            milliseconds(row.seconds),
            memory(held),
            scaled(rate),
            bar(rate / highest, BAR),
        ],
    )


def proposal(bench: Bench, rows: Sequence[Tried], fastest: Tried, scan: Scan) -> Iterator[str]:
    """Return the proposed setting for such scans, with notes."""
    own = bench.setting.patch
    extents = "x".join(map(str, scan.extents))
    if fastest.measured:
        yield printable(fastest.measured.device)
    yield (
        f"voxels/s of a finished scan of {extents} at overlap {scan.overlap:g}, network time only"
    )
    setting = fastest.setting
    patch = ",".join(map(str, setting.patch))
    yield (
        f"Proposed: --patch {patch} --batch {setting.batch} --precision {setting.precision}, "
        f"{scaled(fastest.voxels_per_second(scan))} voxels/s"
    )
    if setting.patch != own and isinstance(bench.subject.source, Path):
        yield (
            "A patch size other than the model's changes its normalisation statistics and "
            "therefore the result: compare before you use it"
        )
        same = best([row for row in rows if row.setting.patch == own], scan)
        if same:
            rate = scaled(same.voxels_per_second(scan))
            yield f"The fastest with the model's patch: {named(same.setting)}, {rate} voxels/s"
    failed = [row for row in rows if not row.measured and not row.is_too_large]
    for row in failed:
        yield f"{named(row.setting)}: {printable(flagged(row.reason))}"
    yield f"{counted(len(rows), 'setting')} tried"


SCHEMA = "cuda-cyclegan/bench/1"


def of_measurement(
    bench: Bench, measured: Measured, results: Sequence[RivalResult]
) -> dict[str, Any]:
    """Encode a measurement and its comparisons."""
    return {
        **_head(bench, measured.device),
        "measured": _measured(measured),
        "layers": measured.layers,
        "others": [_other(result, measured) for result in results],
    }


def of_sweep(bench: Bench, rows: Sequence[Tried], fastest: Tried, scan: Scan) -> dict[str, Any]:
    """Return all settings that were tried."""
    assert fastest.measured is not None  # only what ran is fastest
    return {
        **_head(bench, fastest.measured.device),
        "scan": scan,
        "tried": [_tried(row, scan) for row in rows],
        "proposed": _setting(fastest.setting),
    }


def _head(bench: Bench, device: str) -> dict[str, Any]:
    index = bench.setting.device.index
    drivers = {gpu.index: gpu.driver for gpu in cuda_devices()}
    return {
        "schema": SCHEMA,
        "program": program_version(),
        "date": iso_time(datetime.now(UTC)),
        "device": device,
        "driver": drivers.get(index) if bench.setting.device.kind == "cuda" else None,
        "network": bench.subject.name,
        "setting": _setting(bench.setting),
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {"patch": setting.patch, "batch": setting.batch, "precision": setting.precision}


def _measured(measured: Measured) -> dict[str, Any]:
    return {
        "batch": measured.batch,
        "latency": measured.latency,
        "call": measured.call,
        "patches_per_second": measured.patches_per_second,
        "voxels_per_second": measured.voxels_per_second,
        "flops": measured.flops,
        "memory": measured.memory,
        "ceilings": measured.ceilings,
        "error": measured.error,
        "joules_per_patch": measured.joules_per_patch,
        "average_watts": measured.energy.watts if measured.energy else None,
    }


def _other(result: RivalResult, measured: Measured) -> dict[str, Any]:
    found = encode_record(result)
    if isinstance(result, Rival):
        found["ratio"] = result.latency.median / measured.latency.median
    return found


def _tried(row: Tried, scan: Scan) -> dict[str, Any]:
    found = {**_setting(row.setting), "tiles": row.patches}
    if row.measured is None:
        return {**found, "reason": flagged(row.reason)}
    return {
        **found,
        "seconds": row.seconds,
        "voxels_per_second": row.voxels_per_second(scan),
        "measured": _measured(row.measured),
    }
