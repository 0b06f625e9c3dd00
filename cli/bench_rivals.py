"""What a measurement of `bench` was held against, as lines for a terminal."""

from collections.abc import Iterator, Sequence

from ..engine.measured import Latency, Measured
from ..pipelines.bench import Bench
from ..pipelines.bench_rivals import Fallen, Result, Rival
from .bars import bar
from .bench_text import BAR, milliseconds
from .tables import Row, Table
from .text import memory, printable, seconds

_HEAD = ["ms", "p5", "p95", "x ours", "tensors", "taken", "differs", ""]


def table(
    bench: Bench, measured: Measured, results: Sequence[Result], columns: int | None
) -> Iterator[str]:
    """One row each, with this program's own first."""
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
    yield from Table(Row("", _HEAD), rows).lines(columns)


def notes(measured: Measured, results: Sequence[Result]) -> Iterator[str]:
    """What the columns are, what ran where, and why some did not."""
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
            "tensors: peak of the network's own, not counted in CUDA graphs; taken: with what the "
            "library keeps; differs: relative L2 error of the output against ours"
        )
    for result in results:
        if isinstance(result, Fallen):
            yield f"{printable(result.name)}: {printable(result.reason)}"


def _row(result: Result, own: Latency, slowest: float) -> Row:
    if isinstance(result, Fallen):
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
    return [*times, seconds(latency.median / own.median)]


def _bytes(size: int | None) -> str:
    return "" if size is None else memory(size)
