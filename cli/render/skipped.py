"""Inputs that are not translated: skipped, unused or not found."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...io.links import LEADS_OUT
from .text import MOST_ALIKE, alike_lines, counted, flagged, printable

if TYPE_CHECKING:
    from ...io.search import Skipped
    from ...pipelines.report.report import Skip


def skipped_scans(skipped: "Iterable[Skip | Skipped]") -> Iterator[str]:
    """Return lines about scans that are skipped unless requested."""
    rows = ((str(row.path), flagged(row.reason)) for row in skipped if row.kind)
    shown = ((printable(path), printable(reason)) for path, reason in rows)
    return alike_lines("skipped", shown, "files or series")


def search_notes(notes: Iterable[str]) -> Iterator[str]:
    """Return lines of notes on a whole search."""
    return (f"note: {printable(flagged(note))}" for note in notes)


def nothing_found(
    inputs: Iterable[Path], skipped: "Iterable[Skip | Skipped]", *, are_listed: bool = False
) -> str:
    """Return why no study was found, in a sentence.

    are_listed: whether the reasons for all skipped files are printed, not only those of scans and
    of unread places.
    """
    rows = list(skipped)
    why = "" if rows else "; give scan files, or folders that contain scans"
    others = [] if are_listed else [row for row in rows if not (row.kind or row.missed)]
    for row in others[:1]:
        more = f" ({len(others) - 1} more are skipped)" if len(others) > 1 else ""
        why = f": {row.path}: {flagged(row.reason)}{more}"
    return f"No study found in {', '.join(map(str, inputs))}{why}."


def skip_counts(skipped: "Iterable[Skip | Skipped]", command: str) -> Iterator[str]:
    """Count inputs that are not translated. command: command that lists the reasons."""
    places = [skip for skip in skipped if not skip.kind]
    failed = sum(skip.missed for skip in places)
    if others := len(places) - failed:
        yield (
            f"{counted(others, 'file or series', 'files or series')} skipped; '{command}' lists "
            "the reasons"
        )
    if failed:
        yield (
            f"{counted(failed, 'file or folder', 'files or folders')} unread, which may contain "
            "scans"
        )


def unread_places(skipped: "Iterable[Skip | Skipped]") -> Iterator[str]:
    """Return a line per unread place, and how to include it."""
    alike: dict[tuple[Path, str], list[Path]] = {}
    for path, reason in {skip.path: skip.reason for skip in skipped if skip.missed}.items():
        alike.setdefault((path.parent, reason), []).append(path)
    for (folder, reason), paths in alike.items():
        if len(paths) <= MOST_ALIKE:
            for path in paths:
                yield f"failed: {printable(str(path))}: {printable(reason)}"
        else:
            ends = f"{paths[0].name} to {paths[-1].name}"
            place = f"{printable(str(folder))}: {len(paths)} files, {printable(ends)}"
            yield f"failed: {place}: {printable(reason)}"
    if any(reason == LEADS_OUT for _, reason in alike):
        yield "Use --follow-links to follow links that lead outside the inputs."
