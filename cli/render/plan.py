"""Output of `plan`."""

from collections.abc import Iterator, Sequence

from ...engine.cpu.slabs import SlabPlan
from ...engine.whole_volume import Residence, VolumePlan
from ...io.discovery import Skipped
from ...pipelines.dry_run import DryRow, DryRun
from .progress_lines import failure_text
from .skipped import passed_over
from .tables import Row, TextTable
from .text import alike_lines, counted, flagged, memory, printable, seconds

_RESIDENCES: dict[Residence, str] = {
    "card": "all maps there",
    "recomputed": "the maps of high resolution computed again",
    "host": "maps in RAM",
}


def lines(plan: DryRun, columns: int | None) -> Iterator[str]:
    """Return the table of studies. columns: of the terminal; None for no limit."""
    on_card = any(row.device_bytes for row in plan.rows)

    def figures(ram: str, gpu: str) -> list[str]:
        return [ram, gpu] if on_card else [ram]

    table = TextTable(
        head=Row("study", ["tiles", *figures("RAM", "GPU"), "seconds", "would be"]),
        rows=[
            Row(
                _name(row),
                [
                    _parts(row),
                    *figures(_memory(row.host_bytes), _memory(row.device_bytes)),
                    seconds(row.work.seconds) if row.work else "",
                    _outcome(row),
                ],
            )
            for row in plan.rows
        ],
    )
    return table.lines(columns)


def reasons(plan: DryRun, skipped: Sequence[Skipped], no_card: str) -> Iterator[str]:
    """Return why studies would fail and files are skipped, and the memory a run would use.

    Skipped paths that may contain unread scans are reported elsewhere, as failures. no_card: why no
    GPU is used, "" if that need not be reported.
    """
    rows = plan.rows
    failed = [row for row in rows if row.failure]
    for skip in skipped:
        if not (skip.missed or skip.kind):
            yield f"skipped: {printable(str(skip.path))}: {printable(flagged(skip.reason))}"
    yield from passed_over(skipped)
    for row in rows:
        if text := row.planned.study.text:
            yield f"description: {_name(row)}: {printable(text)}"
    notes = ((_name(row), note) for row in rows for note in (*row.notes, *_at_once(row)))
    yield from alike_lines("note", notes)
    yield from alike_lines("would fail", ((_name(r), failure_text(r.failure)) for r in failed))
    if largest := max((row.host_bytes for row in rows), default=0):
        yield (
            f"RAM: {memory(largest)} for the largest study and the network, besides the program "
            "itself; where there is room, other studies are in memory beside it"
        )
        yield from _on_cards(plan)
        if no_card:
            yield f"GPU memory: none; {no_card}"
        yield from _verified(plan)
        if back := sum(row.tiles_back for row in plan.rows):
            yield f"Cycle check: {counted(back, _part(plan))} on the way back"
        known = None if plan.seconds is None else seconds(plan.seconds)
        yield f"Seconds in all: {known or 'not known yet: it is measured by the first batch'}"
    drawn = sum(row.planned.action == "preview" and not row.failure for row in rows)
    described = sum(row.planned.action == "sidecar" and not row.failure for row in rows)
    kept = sum(row.planned.action == "keep" for row in rows) + drawn + described
    due = len(rows) - kept - len(failed)
    parts = [f"{due} to translate in {counted(sum(row.tiles for row in rows), _part(plan))}"]
    parts += [f"{kept} up to date"] if kept else []
    parts += [f"{counted(drawn, 'preview')} to draw from the files"] if drawn else []
    parts += [f"{counted(described, 'sidecar')} to write"] if described else []
    parts += [f"{len(failed)} that would fail"] if failed else []
    yield f"{counted(len(rows), 'study', 'studies')}: {', '.join(parts)}; nothing was written"


def _name(row: DryRow) -> str:
    return printable(str(row.planned.study.name))


def _part(plan: DryRun) -> str:
    """Return the patch or volume that is computed at a time."""
    return "volume" if any(row.volume for row in plan.rows) else "tile"


def _parts(row: DryRow) -> str:
    if row.volume and row.tiles == 1:
        return "volume"
    return f"{row.tiles} volumes" if row.volume else str(row.tiles or "")


def _at_once(row: DryRow) -> Iterator[str]:
    """Describe whole-volume inference of a study, if it is used."""
    match row.volume:
        case SlabPlan(padded, host_bytes, file_bytes):
            beside = f", and {memory(file_bytes)} of temporary files" if file_bytes else ""
            extents = "x".join(map(str, padded))
            yield f"translated at once as {extents} voxels, in {memory(host_bytes)} of RAM{beside}"
        case VolumePlan(padded, device_bytes, host_bytes, residence):
            extents = "x".join(map(str, padded))
            yield (
                f"translated at once as {extents} voxels, in {memory(device_bytes)} of GPU memory, "
                f"{_RESIDENCES[residence]}{f' of {memory(host_bytes)}' if host_bytes else ''}"
            )
        case None:
            pass


def _on_cards(plan: DryRun) -> Iterator[str]:
    """Describe the memory of each GPU; unknown if it is not exact."""
    for card, held in zip(plan.devices, plan.device_bytes, strict=True):
        if card.program is None or held is None:
            yield (
                f"GPU memory: not known before the first start on {card.card}, which tries plans "
                f"of different sizes; {memory(card.room)} at most"
            )
            continue
        beside = (
            f"CUDA itself takes {memory(card.context)} more"
            if card.context
            else ("what CUDA itself takes is not included")
        )
        yield (
            f"GPU memory: {memory(card.program.bytes)} for a program of "
            f"{counted(card.program.batch, 'tile')} a run, {memory(held)} with the largest arrays "
            f"that may be on {card.card} at once; {beside}"
        )


def _verified(plan: DryRun) -> Iterator[str]:
    """Describe the cost of verification, if it was requested."""
    if again := sum(row.again for row in plan.rows):
        took = "not known yet: it is measured by the first batch that verifies"
        if plan.verifying is not None:
            took = f"{seconds(plan.verifying)} s of its cores"
        yield f"Verification: {counted(again, _part(plan))} again on the CPU, {took}"


def _memory(size: int | None) -> str:
    return memory(size) if size else ""


def _outcome(row: DryRow) -> str:
    if row.failure:
        return "failed"
    if row.planned.action == "keep":
        return "kept"
    if row.planned.action == "preview":
        return "kept, preview drawn"
    if row.planned.action == "sidecar":
        return "kept, sidecar written"
    return f"redone: {row.planned.reason}" if row.planned.reason else "translated"
