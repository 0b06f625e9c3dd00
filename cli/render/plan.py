"""Output of `plan`."""

from collections.abc import Iterator, Sequence

from ...engine.cpu.slabs import SlabPlan
from ...engine.model.calibration import ENOUGH_STUDIES
from ...engine.whole_volume import Residence, VolumePlan
from ...io.discovery import Skipped
from ...pipelines.decisions import PipelineState
from ...pipelines.dry_run import DryRow, DryRun, OtherMode
from .progress_lines import failure_text
from .skipped import skipped_scans
from .tables import Row, TextTable
from .text import alike_lines, counted, flagged, memory, option, printable, seconds

_RESIDENCES: dict[Residence, str] = {
    "card": "all feature maps in it",
    "recomputed": "high-resolution feature maps rematerialised",
    "host": "feature maps offloaded to RAM",
}

_PIPELINES: dict[PipelineState, str] = {
    "proved": "proved by the training code's result for a whole scan",
    "other settings": (
        "unproven for these patches; the training code's result for a whole scan proves the "
        "model's own"
    ),
    "unproven": (
        "unproven; 'model import --reference-scan' compares it with the training code's result "
        "for a whole scan"
    ),
}


def lines(plan: DryRun, columns: int | None) -> Iterator[str]:
    """Return the table of studies. columns: of the terminal; None for no limit."""
    uses_gpu = any(row.cost.device_bytes for row in plan.rows)

    def figures(ram: str, gpu: str) -> list[str]:
        return [ram, gpu] if uses_gpu else [ram]

    table = TextTable(
        head=Row("study", ["patches", *figures("RAM", "GPU"), "seconds", "outcome", "read as"]),
        rows=[
            Row(
                _name(row),
                [
                    _parts(row),
                    *figures(_memory(row.cost.host_bytes), _memory(row.cost.device_bytes)),
                    seconds(row.cost.work.seconds) if row.cost.work else "",
                    _outcome(row),
                    printable("; ".join(scan.read_as for scan in row.planned.study.channels)),
                ],
            )
            for row in plan.rows
        ],
    )
    return table.lines(columns)


def reasons(plan: DryRun, skipped: Sequence[Skipped], no_gpu: str) -> Iterator[str]:
    """Return why studies would fail and files are skipped, and the memory a run would use.

    Skipped paths that may contain unread scans are reported elsewhere, as failures. no_gpu: why no
    GPU is used, "" if that need not be reported.
    """
    rows = plan.rows
    failed = [row for row in rows if row.failure]
    for skip in skipped:
        if not (skip.missed or skip.kind):
            yield f"skipped: {printable(str(skip.path))}: {printable(flagged(skip.reason))}"
    yield from skipped_scans(skipped)
    for row in rows:
        if text := row.planned.study.text:
            yield f"description: {_name(row)}: {printable(text)}"
    notes = ((_name(row), note) for row in rows for note in (*row.notes, *_whole_volume(row)))
    yield from alike_lines("note", notes)
    yield from alike_lines("would fail", ((_name(r), failure_text(r.failure)) for r in failed))
    if largest := max((row.cost.host_bytes for row in rows), default=0):
        yield (
            f"RAM: {memory(largest)} for the largest study and the network, in addition to the "
            "program itself; more studies are loaded at the same time if memory allows"
        )
        yield from _gpu_memory(plan)
        if no_gpu:
            yield f"GPU memory: none; {no_gpu}"
        yield from _verified(plan)
        if back := sum(row.cost.patches_back for row in plan.rows):
            yield f"Cycle check: {_inputs(plan, back)} translated back"
        yield f"Pipeline: {_PIPELINES[plan.pipeline]}"
        if plan.needs_calibration:
            yield (
                f"Calibration: none; 'model calibrate' with {ENOUGH_STUDIES} or more scans that "
                "suit the model lets 'plan' and 'translate' note those that do not"
            )
        total = "known after the first batch"
        if plan.seconds is not None:
            total = f"{seconds(plan.seconds)} s"
        yield f"Total time: {total}"
        if plan.other:
            yield from _other_mode(plan.other)
    drawn = sum(row.planned.action == "preview" and not row.failure for row in rows)
    described = sum(row.planned.action == "sidecar" and not row.failure for row in rows)
    kept = sum(row.planned.action == "keep" for row in rows) + drawn + described
    due = len(rows) - kept - len(failed)
    parts = [f"{due} to translate in {_inputs(plan, sum(row.patches for row in rows))}"]
    parts += [f"{kept} up to date"] if kept else []
    parts += [f"{counted(drawn, 'preview')} to draw from existing files"] if drawn else []
    parts += [f"{counted(described, 'sidecar')} to write"] if described else []
    parts += [f"{len(failed)} would fail"] if failed else []
    yield f"{counted(len(rows), 'study', 'studies')}: {', '.join(parts)}; nothing was written"


def _name(row: DryRow) -> str:
    return printable(str(row.planned.study.name))


def _inputs(plan: DryRun, count: int) -> str:
    """Count inputs of the network: volumes with whole-volume inference, else patches."""
    if any(row.cost.volume for row in plan.rows):
        return counted(count, "volume")
    return counted(count, "patch", "patches")


def _parts(row: DryRow) -> str:
    if row.cost.volume and row.patches == 1:
        return "volume"
    return f"{row.patches} volumes" if row.cost.volume else str(row.patches or "")


def _whole_volume(row: DryRow) -> Iterator[str]:
    """Describe whole-volume inference of a study, if it is used."""
    match row.cost.volume:
        case SlabPlan(padded, host_bytes, file_bytes):
            files = f", and {memory(file_bytes)} of temporary files" if file_bytes else ""
            extents = "x".join(map(str, padded))
            yield (
                f"whole-volume inference on {extents} voxels, in {memory(host_bytes)} of RAM{files}"
            )
        case VolumePlan(padded, device_bytes, host_bytes, residence):
            extents = "x".join(map(str, padded))
            yield (
                f"whole-volume inference on {extents} voxels, in {memory(device_bytes)} of GPU "
                "memory, "
                f"{_RESIDENCES[residence]}{f' of {memory(host_bytes)}' if host_bytes else ''}"
            )
        case None:
            pass


def _other_mode(other: OtherMode) -> Iterator[str]:
    """Describe the batch in the other mode of inference."""
    mode = f"With {option('inference')} {other.inference}"
    if other.failures:
        failing = counted(len(other.failures), "study", "studies")
        yield f"{mode}: {failing} would fail; {failure_text(other.failures[0])}"
    if not other.host_bytes:
        return
    took = "time known after the first batch with it"
    if other.seconds is not None:
        took = f"{seconds(other.seconds)} s"
    on_gpu = f" and {memory(other.device_bytes)} of GPU memory" if other.device_bytes else ""
    values = "differing values, as norms take other statistics"
    if other.is_same:
        values = "the same values, except near borders of patches"
    yield f"{mode}: {took}; {memory(other.host_bytes)} of RAM{on_gpu}; {values}"


def _gpu_memory(plan: DryRun) -> Iterator[str]:
    """Describe the memory of each GPU; unknown if it is not exact."""
    for gpu, largest in zip(plan.devices, plan.device_bytes, strict=True):
        if gpu.program is None or largest is None:
            yield (
                f"GPU memory: unknown until the first start on {gpu.name} has tried tactics of "
                f"different sizes; at most {memory(gpu.budget)}"
            )
            continue
        cuda = (
            f"plus {memory(gpu.context)} for CUDA itself"
            if gpu.context
            else ("not including CUDA itself")
        )
        yield (
            f"GPU memory: {memory(gpu.program.bytes)} for a program of "
            f"{counted(gpu.program.batch, 'patch', 'patches')} per run, {memory(largest)} with the "
            f"largest arrays on {gpu.name} at the same time; {cuda}"
        )


def _verified(plan: DryRun) -> Iterator[str]:
    """Describe the cost of verification, if it was requested."""
    if again := sum(row.cost.again for row in plan.rows):
        took = "time unknown until the first batch with verification is measured"
        if plan.verifying is not None:
            took = f"{seconds(plan.verifying)} s of CPU time"
        yield f"Verification: {_inputs(plan, again)} computed again on the CPU, {took}"


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
    return f"redone: {row.planned.reason}" if row.planned.reason else "to translate"
