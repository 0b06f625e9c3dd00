"""Images of studies as small volumes in scripts, for a page that works from a disk.

A page from a disk may fetch nothing, so each study is a classic script with its levels in base64,
which the page loads when the study is opened.
"""

import json
import os
from base64 import b64encode
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...io.files.atomic import whole_folder
from ..errors import OccupiedError
from ..study.statistics import Range
from .images import ImageStore, StudyImages, ViewedImage
from .server import described
from .studies import Viewing

LARGEST_STUDY = 16 << 20
"""Most bytes of a study's volumes before base64; those of a larger study are thinned out."""

_BEYOND = 0.5
"""Part of an image's window by which its levels go beyond either end, so that it can be widened."""


def check_new(folder: Path) -> None:
    """Raise OccupiedError if a path is in use."""
    if os.path.lexists(folder):
        raise OccupiedError(f"{folder} already exists; choose another name.")


def export_viewing(viewing: Viewing, page: str, folder: Path, done: Callable[[int], None]) -> int:
    """Write a page and the images of all its studies into a new folder; return the bytes.

    done: called with the number of studies that are written. Raises WriteError.
    """
    store = ImageStore(viewing.studies)
    total = 0
    with whole_folder(folder) as partial:
        total += (partial / "index.html").write_bytes(page.encode())
        for number in range(len(viewing.studies)):
            script = _script(number, store.study(number)).encode()
            total += (partial / f"{number}.js").write_bytes(script)
            done(number + 1)
    return total


def _script(number: int, study: StudyImages) -> str:
    info = described(study)
    levels: dict[str, str] = {}
    if study.grid:
        step = _step(study.grid.shape, len(study.images))
        info["shape"] = [-(-extent // step) for extent in study.grid.shape]
        info["spacing"] = [spacing * step for spacing in study.grid.spacing]
        info["toSpace"] = (study.grid.to_space * [step, step, step, 1]).tolist()
        for role, image in study.images.items():
            window = _wide(image.window)
            info["images"][role] |= {"levels": [window.low, window.high], "presets": []}
            levels[role] = b64encode(_levels(image, study.grid, window, step)).decode()
    words: list[Any] = [number, info, levels]
    return f"receiveStudy({', '.join(map(json.dumps, words))});\n"


def _step(shape: tuple[int, ...], images: int) -> int:
    """Return at which distance voxels are taken, so that all images fit the limit."""
    step = 1
    while images * prod(-(-extent // step) for extent in shape) > LARGEST_STUDY:
        step += 1
    return step


def _wide(window: Range) -> Range:
    beyond = _BEYOND * (window.high - window.low)
    return Range(window.low - beyond, window.high + beyond)


def _levels(image: ViewedImage, grid: ViewedImage, window: Range, step: int) -> bytes:
    """Return levels 0 to 255 of every `step`-th voxel, x fastest and z slowest."""
    planes: list[bytes] = []
    for index in range(0, grid.shape[2], step):
        values = image.plane("axial", index, grid).values()[::step, ::step]
        level = (values - window.low) * (255 / (window.high - window.low))
        planes.append(np.nan_to_num(np.clip(np.rint(level), 0, 255)).astype(np.uint8).tobytes())
    return b"".join(planes)
