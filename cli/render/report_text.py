"""What past batches came to, as lines for a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...pipelines.report.codec import StoredReport
from ...pipelines.report.comparison import Comparison, compare
from ...pipelines.report.report import BatchReport, StudyReport
from . import batch_summary
from .terminal.tables import Row, TextTable
from .terminal.text import bar, counted, memory, printable, seconds

BAR = 30
"""Columns of a stage that takes all the time."""

MOST_IN_TIMELINE = 40
"""Studies whose time is shown line by line."""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines that keep their columns, and sentences below them that may be broken.

    lines: of a table. sentences: each on a line of its own, if it fits.
    """

    lines: Iterable[str]
    sentences: Iterable[str] = ()


def sections(stored: Sequence[StoredReport], columns: int | None) -> Iterator[Section]:
    """Each batch, then the comparison of two, and every failure last."""
    for one in stored:
        yield Section([], [_heading(one)])
        yield Section(
            ["", *batch_summary.table(one.batch, columns)], batch_summary.totals(one.batch)
        )
        yield Section([*_stage_bars(one), ""])
        yield Section(_timeline(one.batch, columns))
    if len(stored) == 2:
        yield from _comparison(compare(*stored), columns)
    yield Section([], _failures(stored))


SHORTEST = 0.005
"""Seconds that a table shows as more than none; quotients of less mean nothing."""


def ratio(first: float, second: float) -> str:
    """The first by the second; nothing where either is too short to be shown."""
    return f"{first / second:.2f}" if min(first, second) >= SHORTEST else ""


def _heading(one: StoredReport) -> str:
    batch = one.batch
    return (
        f"{_name(one)}: {printable(batch.model.name)} on {printable(batch.device)}, "
        f"{printable(batch.started)}, cuda-cyclegan {printable(one.program)}"
    )


def _name(one: StoredReport) -> str:
    return printable(one.file.name)


def _failures(stored: Sequence[StoredReport]) -> Iterator[str]:
    """What failed in every batch said once, all else with the name of its report."""
    places: dict[str, list[str]] = {}
    for one in stored:
        for line in batch_summary.failures(one.batch):
            places.setdefault(line, []).append(_name(one))
    for line, names in places.items():
        yield line if len(names) == len(stored) else f"{', '.join(names)}: {line}"


def _stage_bars(one: StoredReport) -> Iterator[str]:
    spent = one.batch.stages()
    total = sum(spent.values())
    if not total:
        return
    yield ""
    yield "Work by stage, added up over the studies, which overlap in time"
    for stage, value in spent.items():
        share = value / total
        yield f"{stage:<8}{seconds(value):>8} s {share:>6.1%}  {bar(share, BAR)}".rstrip()


def _timeline(batch: BatchReport, columns: int | None) -> Iterator[str]:
    """Studies below each other over one time, so that those at work together are seen."""
    rows = batch.by_start()
    if not rows:
        return
    last = max(stop for (_, stop), _ in rows) or 1.0
    table = TextTable(
        head=Row("study", ["from", "to", "under way"]),
        rows=[
            Row(printable(row.name), [seconds(start), seconds(stop), _stretches(row, last)])
            for (start, stop), row in rows[:MOST_IN_TIMELINE]
        ],
    )
    yield from table.lines(columns)
    if len(rows) > MOST_IN_TIMELINE:
        yield f"The first {MOST_IN_TIMELINE} of {len(rows)}; --html shows all."
    yield ""


def _stretches(row: StudyReport, last: float) -> str:
    """Where a stage worked, and dots where the study waited for others."""
    columns = [
        (first := min(int(start / last * BAR), BAR - 1), max(round(stop / last * BAR), first + 1))
        for start, stop in row.when.values()
    ]
    begin, end = min(first for first, _ in columns), max(stop for _, stop in columns)
    worked = {column for first, stop in columns for column in range(first, stop)}
    return " " * begin + "".join("█" if at in worked else "·" for at in range(begin, end))


def _comparison(found: Comparison, columns: int | None) -> Iterator[Section]:
    first, second = _name(found.first), _name(found.second)
    yield Section([], [f"{second} against {first}:", *outcome(found), *_differences(found)])
    if found.pairs:
        yield Section(["", *_pairs(found).lines(columns), ""])
        yield Section([*_stages(found).lines(columns), ""])


def _pairs(found: Comparison) -> TextTable:
    return TextTable(
        head=Row("seconds of work on", ["first", "second", "ratio"]),
        rows=[
            Row(
                printable(pair.first.name),
                [
                    seconds(pair.first.seconds),
                    seconds(pair.second.seconds),
                    ratio(pair.first.seconds, pair.second.seconds),
                ],
            )
            for pair in found.pairs
        ],
        total=Row("added up", [*map(seconds, found.work), ratio(*found.work)]),
    )


def _stages(found: Comparison) -> TextTable:
    rows = [
        Row(stage, [seconds(one), seconds(other), ratio(one, other)])
        for stage, (one, other) in found.stages().items()
    ]
    one, other = found.peaks
    if one and other:
        rows.append(Row("peak RAM", [memory(one), memory(other), ratio(one, other)]))
    return TextTable(head=Row("stage, added up", ["first", "second", "ratio"]), rows=rows)


def _differences(found: Comparison) -> Iterator[str]:
    for name, (one, other) in found.differences.items():
        yield f"- {name}: {printable(one) or 'none'} became {printable(other) or 'none'}"


def outcome(found: Comparison) -> Iterator[str]:
    """What a comparison came to, in a few sentences; what follows says how conditions differ."""
    one, other = map(seconds, found.wall)
    if found.speedup is not None:
        studies = counted(len(found.pairs), "study", "studies")
        yield (
            f"Wall time: {one} s, then {other} s for the same {studies}; the second was "
            f"{found.speedup:.2f} times as fast"
        )
    elif not found.pairs:
        yield "No study was translated in both"
    else:
        yield f"Wall time: {one} s, then {other} s, but not for the same studies"
        for count, name in zip(found.unmatched, ("first", "second"), strict=True):
            if count:
                yield f"{counted(count, 'study', 'studies')} only the {name} translated"
        if found.rate is not None:
            yield f"In a second, the second translated {found.rate:.2f} times as many voxels"
    if found.pairs:
        yield (
            "They did not run under the same conditions:"
            if found.differences
            else "Both ran under the same conditions"
        )
