"""Tables of what a search found."""

from collections.abc import Iterator
from pathlib import Path

from ..io.dicom_series import Series
from ..io.discovery import Discovery
from .tables import Row, Table
from .text import counted, printable


def lines(found: Discovery, columns: int | None) -> Iterator[str]:
    """A row a study or series; columns: width of the terminal, or None for no limit."""
    rows = [_row(series) for series in found.series]
    rows += [
        Row(printable(str(study.files[0])), [study.format, "", "", "", "taken"])
        for study in found.studies
        if study.format != "dicom"
    ]
    head = Row("study", ["kind", "images", "voxels", "mm", "verdict"])
    yield from Table(head, sorted(rows, key=lambda row: row.name)).lines(columns)


def reasons(found: Discovery) -> Iterator[str]:
    """Why something is refused or left out, and what all comes to."""
    for series in found.series:
        if series.verdict == "refused":
            yield f"refused: {_name(series)}: {printable(series.told)}"
    for skip in found.skipped:
        yield f"skipped: {printable(str(skip.path))}: {printable(skip.reason)}"
    for series in found.series:
        if series.verdict == "skipped":
            continue
        for note in series.notes:
            yield f"note: {_name(series)}: {note}"
        if len(series.volumes) > 1:
            yield f"note: {_name(series)}: {len(series.volumes)} volumes; --volume N takes one"
    refused = sum(series.verdict == "refused" for series in found.series)
    parts = [f"{len(found.studies) - refused} to translate"]
    parts += [f"{refused} refused"] if refused else []
    parts += [f"{len(found.skipped)} skipped"] if found.skipped else []
    parts += [f"{counted(found.ignored, 'other file')}"] if found.ignored else []
    yield f"Found: {', '.join(parts)}"


def _row(series: Series) -> Row:
    return Row(
        _name(series),
        [
            printable(series.modality),
            str(series.images),
            "x".join(map(str, series.extents)),
            "x".join(f"{length:.3g}" for length in series.spacing),
            series.verdict,
        ],
    )


def _name(series: Series) -> str:
    return printable(str(Path(series.folder) / series.label))
