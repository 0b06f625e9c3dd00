"""A sweep of `bench` as lines for a terminal: what was tried, and what it proposes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ....pipelines.bench.measurement import Bench
from ....pipelines.bench.parameter_sweep import Scan, Tried, best
from ..terminal.settings import flagged
from ..terminal.tables import Row, TextTable
from ..terminal.text import bar, counted, digits, memory, printable, scaled
from .text import BAR, milliseconds, named


def line(row: Tried, scan: Scan) -> str:
    """One setting as it was tried."""
    outcome = f"{scaled(row.voxels_per_second(scan))} voxels/s" if row.measured else row.reason
    return f"{named(row.setting)}: {printable(flagged(outcome))}"


def table(rows: Sequence[Tried], scan: Scan, columns: int | None) -> Iterator[str]:
    """All settings; columns: of the terminal, None for no limit. Some of them ran."""
    ran = [row for row in rows if row.measured]
    highest = max(row.voxels_per_second(scan) for row in ran)
    head = ["ms a run", "patches/s", "tiles", "ms a scan", "memory", "voxels/s", ""]
    yield from TextTable(
        Row("patch, batch, precision", head), [_row(row, scan, highest) for row in rows]
    ).lines(columns)


def _row(row: Tried, scan: Scan, highest: float) -> Row:
    measured, rate = row.measured, row.voxels_per_second(scan)
    if measured is None:
        return Row(named(row.setting), [*[""] * 6, "no room" if row.is_too_large else "failed"])
    held = measured.memory.planned or measured.memory.taken
    return Row(
        named(row.setting),
        [
            milliseconds(measured.latency.median),
            digits(measured.patches_per_second),
            str(row.tiles),
            milliseconds(row.seconds),
            memory(held),
            scaled(rate),
            bar(rate / highest, BAR),
        ],
    )


def proposal(bench: Bench, rows: Sequence[Tried], fastest: Tried, scan: Scan) -> Iterator[str]:
    """What to translate such scans with, and what to know about it."""
    own = bench.setting.patch
    extents = "x".join(map(str, scan.extents))
    if fastest.measured:
        yield printable(fastest.measured.device)
    yield (
        f"voxels/s are those of a finished scan of {extents} at overlap {scan.overlap:g}, the "
        "network's time alone"
    )
    setting = fastest.setting
    patch = ",".join(map(str, setting.patch))
    yield (
        f"Proposed: --patch {patch} --batch {setting.batch} --precision {setting.precision}, "
        f"{scaled(fastest.voxels_per_second(scan))} voxels/s"
    )
    if setting.patch != own and isinstance(bench.subject.source, Path):
        yield (
            "Another patch than the model was trained for changes what its norms see, and so the "
            "result: compare before you use it"
        )
        same = best([row for row in rows if row.setting.patch == own], scan)
        if same:
            rate = scaled(same.voxels_per_second(scan))
            yield f"The best with its own patch: {named(same.setting)}, {rate} voxels/s"
    failed = [row for row in rows if not row.measured and not row.is_too_large]
    for row in failed:
        yield f"{named(row.setting)}: {printable(flagged(row.reason))}"
    yield f"{counted(len(rows), 'setting')} tried"
