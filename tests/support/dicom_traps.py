"""Folders with a series and something else, and what must come of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.dicom_phantoms import Phantom

from cuda_cyclegan.io.discovery import Discovery

Build = Callable[[Path], None]
CT = Phantom()
MR = Phantom("MR", number=4, series="1.2.3.4.5.7", intercept=0.0)


@dataclass(frozen=True)
class Trap:
    """verdicts: of all rows, with "failed" for series of which something cannot be read.

    missed: names of files and folders that are failures of their own. words: in some reason or
    note, as a pattern.
    """

    build: Build
    verdicts: str = "taken"
    missed: str = ""
    words: str = ""


def verdicts(found: Discovery) -> str:
    rows = ["failed" if row.is_incomplete else row.verdict for row in found.series]
    blockers = [study.blocker for study in found.studies if study.blocker]
    assert len(blockers) == rows.count("failed")
    assert all(blocker.kind == "unreadable" for blocker in blockers)
    return " ".join(sorted(rows))


def missed(found: Discovery) -> str:
    return " ".join(sorted(row.path.name for row in found.skipped if row.missed))


def findings(found: Discovery) -> str:
    rows = [*(f"{row.reason} {row.kind} {' '.join(row.notes)}" for row in found.series)]
    return "\n".join([*rows, *(row.reason for row in found.skipped)])


def check(found: Discovery, trap: Trap) -> None:
    assert (verdicts(found), missed(found)) == (trap.verdicts, trap.missed), findings(found)
    assert re.search(trap.words, findings(found)), findings(found)


def edited(edit: Callable[[Any, int], object], phantom: Phantom = MR) -> Build:
    def build(folder: Path) -> None:
        phantom.write(folder, lambda data, at: edit(data, at) and None)

    return build


def named(data: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(data, name, value)


def both(*builds: Build) -> Build:
    def build(folder: Path) -> None:
        for each in builds:
            each(folder)

    return build
