"""What past batches came to, alone or compared, as one page that needs no other file and no
network.
"""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from ....pipelines.report.comparison import Comparison, compare, conditions
from ....pipelines.report.previews import small_preview
from ....pipelines.report.codec import StoredReport
from ....pipelines.report.report import BatchReport, StudyReport
from ..batch_summary import STATUS, error_text, peak_text, score_text, spread_text, unproven
from ..progress_lines import failure_text
from ..report_text import outcome, ratio
from ..terminal.settings import flagged
from ..terminal.text import counted, duration, memory, scaled, seconds
from .charts import PlotSpan, legend, over_time, stage_bar, timeline_bar
from .cycle import cycle_cell, cycle_section, worst_first
from .markup import Child, document, element, figure, openable, plots, table, tiles


def comparison(found: Comparison) -> Iterator[Child]:
    """The second batch against the first."""
    yield element("h1", f"{found.second.file.name} against {found.first.file.name}")
    for sentence in outcome(found):
        yield element("p", sentence)
    if found.differences:
        yield table(
            ["", "first", "second"],
            [[name, *words] for name, words in found.differences.items()],
        )
    if found.pairs:
        yield element("h2", "Work by stage, added up over the studies in both")
        yield legend()
        yield _stages_of_both(found)
        yield element("h2", "Studies in both")
        yield _pairs(found)


def _stages_of_both(found: Comparison) -> Child:
    longest = max(second for pair in found.stages().values() for second in pair)
    rows: list[list[Child]] = [
        [
            stage,
            element("div", stage_bar({stage: first}, longest), stage_bar({stage: second}, longest)),
            seconds(first),
            seconds(second),
            ratio(first, second),
        ]
        for stage, (first, second) in found.stages().items()
    ]
    first, second = found.peaks
    if first and second:
        rows.append(["peak memory", "", memory(first), memory(second), ratio(first, second)])
    return table(["stage", "", "first", "second", "first / second"], rows, numbers=(2, 3, 4))


def _pairs(found: Comparison) -> Child:
    longest = max(
        max(sum(p.first.stages.values()), sum(p.second.stages.values())) for p in found.pairs
    )
    return table(
        ["study", "stages", "first, s", "second, s", "first / second"],
        [
            [
                pair.first.name,
                element(
                    "div",
                    stage_bar(pair.first.stages, longest),
                    stage_bar(pair.second.stages, longest),
                ),
                seconds(pair.first.seconds),
                seconds(pair.second.seconds),
                ratio(pair.first.seconds, pair.second.seconds),
            ]
            for pair in found.pairs
        ],
        numbers=(2, 3, 4),
        total=["added up", "", *map(seconds, found.work), ratio(*found.work)],
    )


PREVIEWS = 200
"""Previews embedded of one batch; at some 40 kB each a page stays usable."""

FEW = 3
"""Previews that are large from the beginning."""


def page(stored: Sequence[StoredReport]) -> str:
    """The page; what failed stands before all else of its batch."""
    title = " and ".join(one.file.name for one in stored[:2])
    parts: list[Child] = []
    if len(stored) == 2:
        parts += comparison(compare(*stored))
    for one in stored:
        parts += _batch(one)
    return document(f"Batch report: {title}", element("main", *parts))


def _batch(one: StoredReport) -> Iterator[Child]:
    batch = one.batch
    yield element("h1", f"{batch.model.name}: {one.file.name}")
    yield element(
        "p",
        f"{batch.started.replace('T', ' ')} on {one.machine.host}, {batch.device}",
        class_="faint",
    )
    if batch.model.is_unproven:
        yield element("p", f"Note: {unproven(batch)}.")
    yield _figures(batch)
    yield from _failures(batch)
    if batch.translated():
        yield element("h2", "Work by stage, added up over the studies")
        yield legend()
        yield _stages(batch)
        yield element("h2", "Along the batch")
        yield _plots(batch)
    yield from cycle_section(batch)
    yield from _previews(one)
    yield from _timeline(batch)
    if any(row.status != "up to date" for row in batch.studies):
        yield element("h2", "Studies")
        yield openable(_studies(batch), len(batch.studies))
    yield element("h2", "Conditions")
    yield element(
        "dl",
        *(
            part
            for name, words in {**conditions(one), "results": str(batch.output)}.items()
            for part in (element("dt", name), element("dd", words))
        ),
        class_="conditions",
    )
    if batch.skipped:
        yield element("h2", "Skipped")
        rows: list[list[Child]] = [[str(s.path), flagged(s.reason)] for s in batch.skipped]
        yield openable(table(["file", "reason"], rows), len(rows))


def _figures(batch: BatchReport) -> Element:
    rate, peak = batch.voxels_per_second, batch.peak_memory
    figures = {
        "translated": str(len(batch.translated())),
        "up to date": str(batch.count("up to date") or ""),
        "failed": str(len(batch.failures) or ""),
        "not finished": str(batch.count("interrupted") + batch.not_reached or ""),
        "time": duration(batch.seconds) if batch.seconds >= 60 else f"{seconds(batch.seconds)} s",
        "throughput": f"{scaled(rate)} voxels/s" if rate else "",
        "peak memory": peak_text(peak),
        "beyond cycle limit": str(sum(cycle.is_marked for cycle in batch.cycles) or ""),
        "worst seam": score_text(batch.worst_seam),
    }
    return tiles(figures, bad=("failed", "not finished", "beyond cycle limit"))


def _stages(batch: BatchReport) -> Element:
    spent = batch.stages()
    total = sum(spent.values()) or 1.0
    return table(
        ["stage", "", "seconds", "share"],
        [
            [stage, stage_bar({stage: value}, total), seconds(value), f"{value / total:.1%}"]
            for stage, value in spent.items()
        ],
        numbers=(2, 3),
        class_="narrow",
    )


def _plots(batch: BatchReport) -> Element:
    rows = batch.translated()
    rates = [row.voxels_per_second or 0.0 for row in rows]
    named = [("Throughput, voxels a second", over_time(_spans(rows, rates), scaled))]
    peaks = [row.peak_memory.bytes / 2**20 if row.peak_memory else 0.0 for row in rows]
    if max(peaks) >= 1024:
        gibibytes = [peak / 1024 for peak in peaks]
        named.append(("Peak memory, GiB", over_time(_spans(rows, gibibytes), "{:g}".format)))
    elif any(peaks):
        named.append(("Peak memory, MiB", over_time(_spans(rows, peaks), "{:g}".format)))
    return plots(named)


def _spans(rows: Sequence[StudyReport], values: Sequence[float]) -> list[PlotSpan]:
    """The studies when they were under way, or one after another where that was not recorded."""
    spans: list[PlotSpan] = []
    begin = 0.0
    for row, value in zip(rows, values, strict=True):
        start, stop = row.under_way or (begin, begin + row.seconds)
        spans.append(PlotSpan(start, stop, value, row.name))
        begin += row.seconds
    return spans


def _timeline(batch: BatchReport) -> Iterator[Child]:
    """Studies below each other over one time, so that those at work together are seen."""
    rows = batch.by_start()
    if not rows:
        return
    last = max(stop for (_, stop), _ in rows)
    yield element("h2", "When each study was under way")
    yield legend()
    timeline = table(
        ["study", "", "from, s", "to, s"],
        [
            [row.name, timeline_bar(row.when, last), seconds(start), seconds(stop)]
            for (start, stop), row in rows
        ],
        numbers=(2, 3),
        class_="timeline",
    )
    yield openable(timeline, len(rows))


def _studies(batch: BatchReport) -> Element:
    rows = [row for row in batch.studies if row.status != "up to date"]
    longest = max((sum(row.stages.values()) for row in rows), default=0.0)
    seams = batch.worst_seam is not None
    verified = batch.worst_verified is not None
    cycles = bool(batch.cycles)
    asked = [*(["seam"] if seams else []), *(["off by"] if verified else [])]
    asked += ["cycle"] if cycles else []
    spread = batch.worst_spread is not None
    asked += ["spread"] if spread else []
    head = ["study", "stages", "seconds", "voxels/s", "peak", *asked, ""]
    return table(
        head,
        [
            [
                row.name,
                stage_bar(row.stages, longest),
                seconds(row.seconds),
                scaled(row.voxels_per_second) if row.voxels_per_second else "",
                peak_text(row.peak_memory),
                *([score_text(row.seams and row.seams.worst)] if seams else []),
                *([error_text(row.verified and row.verified.error)] if verified else []),
                *([cycle_cell(row)] if cycles else []),
                *([spread_text(row.spread and row.spread.deviation)] if spread else []),
                element("span", STATUS[row.status], class_=f"status {row.status}"),
            ]
            for row in rows
        ],
        numbers=range(2, len(head) - 1),
    )


def _previews(one: StoredReport) -> Iterator[Child]:
    """Pictures of the first studies that have one."""
    pictured = [row for row in one.batch.studies if row.preview and not row.failure]
    if one.batch.cycles:
        pictured.sort(key=worst_first)
    shown = [(row, picture) for row in pictured[:PREVIEWS] if (picture := small_preview(one, row))]
    if not shown:
        return
    yield element("h2", "Previews")
    told = "A click shows one large or small."
    if len(pictured) > PREVIEWS:
        told += f" The first {PREVIEWS} of {len(pictured)}; each lies beside its result."
    yield element("p", told, class_="faint")
    is_large = len(shown) <= FEW
    figures = (
        figure(row.name, f"Middle slices of {row.name}", picture, is_large=is_large)
        for row, picture in shown
    )
    yield element("div", *figures, class_="previews")


def _failures(batch: BatchReport) -> Iterator[Child]:
    failures = batch.failures
    if failures:
        yield element("h2", counted(len(failures), "failure"), class_="failed")
        rows = table(
            ["study", "stage", "reason"],
            [
                [row.name, (row.failure and row.failure.stage) or "", failure_text(row.failure)]
                for row in failures
            ],
        )
        yield openable(rows, len(failures))
