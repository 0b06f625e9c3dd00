"""`cuda-cyclegan bench --sweep`: finds the fastest setting and writes it to the config file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import typer
from typer.core import TyperGroup

from ....engine.network.graph import Network
from ....engine.network.layers import Triple
from ....engine.options import Precision
from ....pipelines.bench.measurement import Bench
from ....pipelines.bench.parameter_sweep import Scan, Tried, best, candidates, sweep
from ....pipelines.config import user_config, write_defaults
from ....pipelines.errors import SettingsError
from ...options.config import named_config, options_of
from ...render import bench as shown
from ...render.terminal import spinner
from ...render.text import printable
from .outputs import Outputs


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """Fixed settings of a sweep, None for those to be measured, and the outputs.

    outputs: those of the command. scan: extents to translate. patch: (D, H, W). batch: patches per
    run. precision: of the network's arithmetic.
    """

    outputs: Outputs
    scan: Scan
    patch: Triple | None
    batch: int | None
    precision: Precision | None


def run_sweep(bench: Bench, network: Network, asked: SweepRequest) -> Tried:
    """Measure, print and store the requested outputs; return the fastest setting.

    Raises SettingsError if none could run.
    """
    outputs, scan, own = asked.outputs, asked.scan, bench.setting.patch
    tried = candidates(
        network.graph,
        bench.setting.device,
        own,
        asked.batch,
        asked.precision,
        0 if asked.patch else max(scan.extents),
    )
    outputs.print_sentences([printable(bench.subject.name)])
    rows: list[Tried] = []
    with spinner("Measuring"):
        for row in sweep(bench, network, tried, scan):
            rows.append(row)
            outputs.progress(shown.sweep_line(row, scan))
    fastest = best(rows, scan)
    if fastest is None:
        raise SettingsError(f"None of these settings can run; the first failed: {rows[0].reason}")
    outputs.print_lines(shown.sweep_table(rows, scan, outputs.columns))
    outputs.print_sentences(shown.proposal(bench, rows, fastest, scan))
    outputs.store(shown.of_sweep(bench, rows, fastest, scan))
    return fastest


TABLE = "translate"


def write(context: typer.Context, fastest: Tried, vram_limit: str | None) -> str:
    """Write to the --config file, or else the user's; return a message about it.

    vram_limit: limit under which the setting was found. Raises ConfigError or WriteError.
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
