"""What a file's name and the JSON beside it tell of its contrast; its header tells nothing."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from .contrasts import Contrasts
from .files.own_files import NO_LINK
from .search import suffix_of
from .volume import Study

LARGEST_SIDECAR_BYTES = 1 << 20


def told_beside(study: Study) -> Iterator[tuple[str, Contrasts]]:
    """By whom, in words, and what: the modality in a sidecar as BIDS and dcm2niix have it, and the
    last word of the name, as in sub-01_T1w.nii.gz. Neither is part of the scan, and may be wrong.
    """
    file = study.files[0]
    stem = file.name.removesuffix(file.name[-len(suffix_of(file)) :])
    beside = file.with_name(f"{stem}.json")
    modality = _modality_in(beside)
    yield f"{beside.name} says {modality}", Contrasts.named_in(modality)
    word = stem.rpartition("_")[2]
    yield f"its name says {word}", Contrasts.named_in(word)


def _modality_in(sidecar: Path) -> str:
    """Its Modality; nothing if it has none, is a link, or cannot be understood."""
    try:
        status = sidecar.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_SIDECAR_BYTES:
            return ""
        with os.fdopen(os.open(sidecar, os.O_RDONLY | NO_LINK), "rb") as file:
            told: Any = json.loads(file.read(LARGEST_SIDECAR_BYTES))
    except (OSError, ValueError, RecursionError):
        return ""
    modality = cast("dict[str, Any]", told).get("Modality") if isinstance(told, dict) else None
    return modality if isinstance(modality, str) and modality.isalpha() else ""
