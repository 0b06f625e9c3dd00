"""`cuda-cyclegan bench --sweep`: every setting that was tried, what it proposes, and its way
into the config file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import typer
from typer.core import TyperGroup

from ....engine.network.graph import Network
from ....engine.network.layers import Triple
from ....engine.options import Precision
from ....pipelines.bench.measurement import Bench, Setting
from ....pipelines.bench.parameter_sweep import Scan, Tried, best, candidates, sweep
from ....pipelines.config import user_config, write_defaults
from ....pipelines.errors import SettingsError
from ...options.config import named_config, options_of
from ...render.bench import json_output
from ...render.bench.outputs import View
from ...render.bench.text import BAR, milliseconds
from ...render.terminal.settings import flagged
from ...render.terminal.spinner import spinner
from ...render.terminal.tables import Row, TextTable
from ...render.terminal.text import bar, counted, digits, memory, printable, scaled


@dataclass(frozen=True, slots=True)
class SweepView:
    """What is swept for, with None where it is to be found, and where the figures go.

    view: of the command's output. scan: what is to be translated. patch: (D, H, W). batch: patches
    in one run. precision: of the network's arithmetic.
    """

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
    with spinner("Measuring"):
        for row in sweep(bench, network, tried, scan):
            rows.append(row)
            view.progress(_line(row, scan))
    fastest = best(rows, scan)
    if fastest is None:
        raise SettingsError(f"None of these settings can run; the first: {rows[0].reason}")
    view.show(_table(rows, scan, view.columns))
    view.tell(_proposal(bench, rows, fastest, scan))
    view.store(json_output.of_sweep(bench, rows, fastest, scan))
    return fastest


def named(setting: Setting) -> str:
    """A setting in words."""
    patch = "x".join(map(str, setting.patch))
    return f"{patch}, batch {setting.batch}, {setting.precision}"


def _line(row: Tried, scan: Scan) -> str:
    outcome = f"{scaled(row.voxels_per_second(scan))} voxels/s" if row.measured else row.reason
    return f"{named(row.setting)}: {printable(flagged(outcome))}"


def _table(rows: Sequence[Tried], scan: Scan, columns: int | None) -> Iterator[str]:
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
        yield f"{named(row.setting)}: {printable(flagged(row.reason))}"
    yield f"{counted(len(rows), 'setting')} tried"


TABLE = "translate"


def write(context: typer.Context, fastest: Tried, vram_limit: str | None) -> str:
    """Write to the file of --config, or else the user's; what was done, in a sentence.

    vram_limit: under which the setting was found. Raises ConfigError or WriteError.
    """
    path = named_config(context) or user_config()
    known = options_of(cast("TyperGroup", context.find_root().command).commands[TABLE])
    keys = {key: value for key, value in _keys(fastest, vram_limit) if key in known}
    write_defaults(path, TABLE, keys)
    listed = ", ".join(f"{key} = {value}" for key, value in keys.items())
    return f"Written to {path}: [{TABLE}] {listed}"


def _keys(fastest: Tried, vram_limit: str | None) -> Iterator[tuple[str, str | int]]:
    setting = fastest.setting
    yield "patch", ",".join(map(str, setting.patch))
    yield "batch", setting.batch
    yield "precision", setting.precision
    if vram_limit:
        yield "vram-limit", vram_limit
