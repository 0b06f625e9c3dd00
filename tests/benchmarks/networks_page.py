"""Write docs/networks.md from the stored results on networks of others.

PYTHONPATH=tests python tests/benchmarks/networks_page.py
"""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.code_of_others import Row, label, listed
from benchmarks.networks_beside_pytorch import (
    COMPILED,
    EXTENT,
    FIRST,
    LATER,
    LAYOUTS,
    best,
    dates,
    found,
    stored,
)
from benchmarks.networks_beside_pytorch import RESULT as TIMES
from benchmarks.networks_of_others import GPU_RESULT, RESULT, is_accepted, is_exact
from benchmarks.networks_on_cpu import OPENVINO, OURS
from benchmarks.networks_on_cpu import RESULT as CPU_TIMES

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
WIDTH = 140
RIVALS: dict[str, tuple[str, ...]] = {"PyTorch": (*LAYOUTS,), OPENVINO: (OPENVINO,)}
"""Ways of each other program on the CPU."""

START = """\
# Networks that were tried

Look here for a network like yours before you export it. The tables list {networks} networks from
{repositories} repositories of other people. Their code is unmodified, and they were built small,
with random weights. {imported} are imported in at least one way, {refused} are rejected with a
reason, and none is computed wrongly.

- *Imported from:* "ONNX" is [ONNX](onnx.md) by PyTorch's older exporter, and "newer" is ONNX by
  its newer one (tried where the older one failed). ".pt2" is [torch.export](torch-export.md), and
  "--code" is a [checkpoint with --code](import.md#with-the-name-of-the-training-code). A star
  means that only patches of the exported size are accepted.
- *Error:* relative L2 distance to the network in float64, the largest of the ways of import.
  *PyTorch:* the same distance for PyTorch in float32. An error of at most 5e-6, or of 1.5 times
  PyTorch's own, is allowed: {exact} meet it.
- *GPU fp32, fp16:* the same distance on a GPU ({gpu}, {gpu_date}, {on_gpu} networks).
- *Reason:* the values of a network that sees the whole patch differ from patch to patch. A
  network that makes other extents does not give one value per voxel of a scan.

Measured by `tests/benchmarks/networks_of_others.py` on {date} with {versions}.
"""

SPEED = """\
## Speed

{timed} of the {imported} imported networks at the size of their authors' own settings, in fp16 on a
patch of {extent}^3 (a star: 128^3) on one {gpu}; the others have not been timed yet. The ratio is
this program's time to PyTorch's: its median is {median:.2f}, and it is above 0.6 for {slow} of
them.

- *First start, later start:* the first time that `translate` opens the network, and after its
  [search for tactics](gpu.md#tuning).
- *PyTorch:* the fastest of half precision contiguous and channels last, each eager and in a CUDA
  graph{compiled}.
- Times are milliseconds on the GPU by CUDA events, without copies of the patch: the smallest of 5
  medians of 20 launches each.

Measured by `tests/benchmarks/networks_beside_pytorch.py` on {date} with {versions}.
"""

CPU_SPEED = """\
## Speed on a CPU

{timed} of the {imported} imported networks, built as for the GPU, in fp32 on a patch of noise of
{extent}^3 (a star: 128^3) on {cores} cores of an {processor}. Ratios are this program's time to the
other's: to PyTorch {pytorch_low:.2f} to {pytorch_high:.2f}, median {pytorch:.2f}; to OpenVINO
{openvino_low:.2f} to {openvino_high:.2f}, median {openvino:.2f}.

- *PyTorch:* the faster of contiguous and channels last, eager.
- *OpenVINO:* the exported ONNX file as it is. Where a network has norms of the patch, OpenVINO's
  own are faster and [less accurate](cpu.md#precision).
- *Errors:* relative L2 distance to PyTorch in fp32, of this program and of OpenVINO.
- Times are milliseconds: the smallest of 2 to 7 runs, the ways in turn.

Measured by `tests/benchmarks/networks_on_cpu.py` on {date} with {versions}.
"""


def main() -> None:
    """Write the page."""
    lines = [*_imports(json.loads(RESULT.read_text()), json.loads(GPU_RESULT.read_text()))]
    PAGE.write_text("\n".join(lines) + "\n")


def _imports(record: Row, on_gpu: Row) -> Iterator[str]:
    rows = [row for row in record["networks"] if "routes" in row]
    imported = [row for row in rows if is_accepted(row)]
    refused = [row for row in rows if not is_accepted(row)]
    exact = sum(map(is_exact, imported))
    reasons = {(each["repository"], network["name"]): network for each, network in listed("")}
    yield _wrapped(
        START.format(
            networks=len(rows),
            repositories=len({row["repository"] for row in rows}),
            imported=len(imported),
            refused=len(refused),
            exact="all of them" if exact == len(imported) else f"{exact} of them",
            date=record["date"],
            versions=_listed(record["versions"]),
            on_gpu=len(on_gpu["errors"]),
            gpu=on_gpu["gpu"],
            gpu_date=on_gpu["date"],
        )
    )
    yield "## Imported\n"
    yield "| repository, commit | network | imported from | error | PyTorch | GPU fp32 | GPU fp16 |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from (_imported_line(row, on_gpu["errors"]) for row in imported)
    yield from _speed(stored(TIMES), imported)
    yield from _cpu_speed(stored(CPU_TIMES), imported)
    yield "\n## Rejected\n"
    yield "| repository, commit | network | reason | message |"
    yield "| --- | --- | --- | --- |"
    yield from (_refused_line(row, reasons[row["repository"], row["name"]]) for row in refused)


def _speed(times: Row, imported: list[Row]) -> Iterator[str]:
    """Yield the section on speed, of the networks that were timed."""
    rows = [row for each in imported if (row := found(times, each, each)) and best(row)]
    compiled = [row for row in rows if any(COMPILED in way for way in row["pytorch"])]
    beside = [ratio for row in compiled if (ratio := _ratio(row)) is not None]
    ratios = [ratio for row in rows if (ratio := _ratio(row)) is not None]
    yield ""
    yield _wrapped(
        SPEED.format(
            extent=EXTENT,
            gpu=times["gpu"],
            median=median(ratios),
            slow=sum(ratio > 0.6 for ratio in ratios),
            timed=len(ratios),
            imported=len(imported),
            compiled=f", for {len(compiled)} also by `torch.compile` in one; the median of their "
            f"ratios is {median(beside):.2f}"
            if beside
            else ", without `torch.compile`",
            date=dates(rows),
            versions=_listed(times["versions"]),
        )
    )
    yield (
        "| repository | network | parameters | first start | later start "
        "| best of PyTorch | by | ratio |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: |"
    yield from map(_speed_line, rows)


def _ratio(row: Row) -> float | None:
    rival = best(row)
    return row["ours"][LATER] / rival[1] if rival and "ours" in row else None


def _speed_line(row: Row) -> str:
    size, ours, rival, ratio = row["parameters"], row.get("ours"), best(row), _ratio(row)
    name = row["name"] + ("*" if "ours" in row and row["patch"] > EXTENT else "")
    cells = [
        f"{size / 1e6:.2g} M" if rival or ours else "-",
        *((f"{ours[start]:.3f}" for start in (FIRST, LATER)) if ours else ("-", "-")),
        *((f"{rival[1]:.3f}", rival[0]) if rival else ("-", "-")),
        "-" if ratio is None else f"{ratio:.2f}",
    ]
    return f"| {row['repository']} | {name} | {' | '.join(cells)} |"


def _cpu_speed(times: Row, imported: list[Row]) -> Iterator[str]:
    """Yield the section on speed on the CPU, of the networks that were timed."""
    rows = [row for each in imported if "seconds" in (row := found(times, each, each))]
    ratios = {way: [ratio for row in rows if (ratio := _cpu_ratio(row, way))] for way in RIVALS}
    yield ""
    yield _wrapped(
        CPU_SPEED.format(
            extent=EXTENT,
            timed=len(rows),
            imported=len(imported),
            cores=len(times["processor"]["cores"]),
            processor=times["processor"]["name"],
            **{way.lower(): median(found) for way, found in ratios.items()},
            **{f"{way.lower()}_low": min(found) for way, found in ratios.items()},
            **{f"{way.lower()}_high": max(found) for way, found in ratios.items()},
            date=dates(rows),
            versions=_listed(times["versions"]),
        )
    )
    ways = " | ".join(f"{way} | ratio" for way in RIVALS)
    yield f"| repository | network | this program | {ways} | error | OpenVINO's |"
    yield f"| --- | --- |{' ---: |' * 7}"
    yield from map(_cpu_line, rows)


def _cpu_seconds(row: Row, rival: str) -> float | None:
    return min(
        (row["seconds"][way] for way in RIVALS[rival] if way in row["seconds"]), default=None
    )


def _cpu_ratio(row: Row, rival: str) -> float | None:
    seconds = _cpu_seconds(row, rival)
    return row["seconds"][OURS] / seconds if seconds else None


def _cpu_line(row: Row) -> str:
    cells = [
        row["name"] + ("*" if row["patch"] > EXTENT else ""),
        f"{1e3 * row['seconds'][OURS]:.0f}",
    ]
    for rival in RIVALS:
        seconds, ratio = _cpu_seconds(row, rival), _cpu_ratio(row, rival)
        cells += [f"{1e3 * seconds:.0f}", f"{ratio:.2f}"] if seconds and ratio else ["-", "-"]
    cells += [
        f"{row['errors'][way]:.1e}" if way in row["errors"] else "-" for way in (OURS, OPENVINO)
    ]
    return f"| {row['repository']} | {' | '.join(cells)} |"


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _wrapped(text: str) -> str:
    """Return text with its paragraphs and items in lines of the width of the pages."""
    blocks = (re.split(r"\n(?=- )", block) for block in text.strip().split("\n\n"))
    return "\n\n".join("\n".join(map(_filled, block)) for block in blocks) + "\n"


def _filled(part: str) -> str:
    indent = "  " if part.startswith("- ") else ""
    words = textwrap.TextWrapper(
        WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return words.fill(" ".join(part.split()))


def _place(row: Row) -> str:
    name, commit = row["repository"], row["commit"]
    return f"[{name}](https://github.com/{name}) {commit[:7]}".strip()


def _imported_line(row: Row, on_gpu: Row) -> str:
    ways = {name: route for name, route in row["routes"].items() if "error" in route}
    shown = ", ".join(name + ("*" if "one patch" in route else "") for name, route in ways.items())
    error = max(route["error"] for route in ways.values())
    errors = [error, row["own"], *on_gpu.get(label(row["repository"], row["name"]), {}).values()]
    shown = " | ".join((shown, *(f"{each:.1e}" for each in errors), *["-"] * (4 - len(errors))))
    return f"| {_place(row)} | {row['name']} | {shown} |"


def _refused_line(row: Row, network: Row) -> str:
    routes = row["routes"].values()
    refused = [route["refused"].partition(": ")[2] for route in routes if "refused" in route]
    failed = [
        route["not exported"].partition("  [")[0] for route in routes if "refused" not in route
    ]
    text = refused[0] if refused else f"PyTorch cannot export it ({failed[0]})"
    reason = network.get("refused", "")
    return f"| {_place(row)} | {row['name']} | {reason} | {text.replace('|', ' ')} |"


if __name__ == "__main__":
    main()
