"""`bench --sweep`: every setting that was tried, and what it proposes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.graph import Network, Triple
from ..engine.precision import Precision
from ..pipelines.bench import Bench, Setting
from ..pipelines.bench_sweep import Scan, Tried, best, candidates, sweep
from ..pipelines.errors import SettingsError
from . import bench_json
from .at_work import at_work
from .bars import bar
from .bench_text import BAR, few, milliseconds
from .bench_view import View
from .tables import Row, Table
from .text import counted, memory, printable, scaled


@dataclass(frozen=True, slots=True)
class SweepView:
    """What is swept for, with None where it is to be found, and where the figures go."""

    view: View
    scan: Scan
    patch: Triple | None
    batch: int | None
    precision: Precision | None


def run_sweep(bench: Bench, network: Network, asked: SweepView) -> Tried:
    """Measure, print, and store what was asked for; the fastest setting.

    Raises SettingsError if none could run.
    """
    view, scan, own = asked.view, asked.scan, bench.setting.patch
    tried = candidates(
        network.graph,
        bench.setting.device,
        own,
        asked.batch,
        asked.precision,
        0 if asked.patch else max(scan.extents),
    )
    view.tell([printable(bench.subject.name)])
    rows: list[Tried] = []
    with at_work("Measuring"):
        for row in sweep(bench, network, tried, scan):
            rows.append(row)
            view.progress(_line(row, scan))
    fastest = best(rows, scan)
    if fastest is None:
        raise SettingsError(f"None of these settings can run; the first: {rows[0].reason}")
    view.show(_table(rows, scan, view.columns))
    view.tell(_proposal(bench, rows, fastest, scan))
    view.store(bench_json.of_sweep(bench, rows, fastest, scan))
    return fastest


def named(setting: Setting) -> str:
    """A setting in words."""
    patch = "x".join(map(str, setting.patch))
    return f"{patch}, batch {setting.batch}, {setting.precision}"


def _line(row: Tried, scan: Scan) -> str:
    outcome = f"{scaled(row.voxels_per_second(scan))} voxels/s" if row.measured else row.reason
    return f"{named(row.setting)}: {printable(outcome)}"


def _table(rows: Sequence[Tried], scan: Scan, columns: int | None) -> Iterator[str]:
    ran = [row for row in rows if row.measured]
    highest = max(row.voxels_per_second(scan) for row in ran)
    head = ["ms a run", "patches/s", "tiles", "ms a scan", "memory", "voxels/s", ""]
    yield from Table(
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
            few(measured.patches_per_second),
            str(row.tiles),
            milliseconds(row.seconds),
            memory(held),
            scaled(rate),
            bar(rate / highest, BAR),
        ],
    )


def _proposal(bench: Bench, rows: Sequence[Tried], fastest: Tried, scan: Scan) -> Iterator[str]:
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
        yield f"{named(row.setting)}: {printable(row.reason)}"
    yield f"{counted(len(rows), 'setting')} tried"
