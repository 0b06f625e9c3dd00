"""What the headers of a DICOM series say of a volume, without its pixels."""

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnreadableScanError
from ...files.regular import open_regular
from ...volume import Grid, Study
from ..enhanced import frame_groups
from ..geometry import grid_of
from ..instance import DataSet, Frame, Stack, number
from ..library import PARSING_ERRORS, tag_of
from ..parsing import read_partial
from .decoding import Scale, scale_of
from .reading import even_over, frames_of, place_of

_FIRST_OF_PIXELS = tag_of("FloatPixelData")
_SCALED = np.dtype(np.float32)
"""Of values whose slices have lines of their own."""
_COPIES_OF_A_FILE = 2
"""Its bytes, and the pixels among them, packed or not."""
_BYTES_OF_A_HEADER = 32 << 10
"""Of a file, which stays for the result."""
_BYTES_OF_A_PIXEL = 16
"""Of the frame that is being unpacked: decoders of JPEG 2000 hold several numbers a pixel."""


def read_grid(study: Study, volume_index: int | None) -> Grid:
    """Where the voxels of a series lie, by the places of all of its slices, and what they are, by
    the headers of the first and the last.

    Raises ScanError and OSError.
    """
    place, frames = place_of(study), frames_of(study, volume_index)
    headers = {frame.file: _header(frame.file) for frame in (frames[0], frames[-1])}
    first, last = (_scale(headers[frame.file], frame) for frame in (frames[0], frames[-1]))
    stored = _voxel_type(headers[frames[0].file])
    is_padded = any("PixelPaddingValue" in header for header in headers.values())
    scale, voxel_type = (first, stored) if first == last else (Scale(1.0, 0.0), _SCALED)
    grid, even = grid_of(frames), frames
    if grid.trouble:
        even = even_over(frames, grid, place).frames
        grid = grid_of(even)
    held = stored.itemsize * _pixels(frames)
    held += voxel_type.itemsize * _pixels(frames) if voxel_type != stored else 0
    held += (voxel_type.itemsize + 2) * _pixels(frames) if is_padded else 0
    held += voxel_type.itemsize * _pixels(even) if even is not frames else 0
    files = {frame.file for frame in frames}
    held += _COPIES_OF_A_FILE * max(file.stat().st_size for file in files)
    held += _BYTES_OF_A_HEADER * len(files) + _BYTES_OF_A_PIXEL * _pixels(frames[:1])
    return Grid(
        (even[0].columns, even[0].rows, len(even)),
        grid.affine,
        (),
        voxel_type,
        held,
        scale.slope,
        scale.intercept,
    )


def _pixels(frames: Stack) -> int:
    return frames[0].rows * frames[0].columns * len(frames)


def _header(path: Path) -> DataSet:
    """All elements before the pixels."""
    try:
        with open_regular(path) as file:
            return read_partial(file, _is_of_pixels, force=True)
    except PARSING_ERRORS as error:
        raise UnreadableScanError(
            f"{path} is truncated or damaged ({type(error).__name__}); copy or export it again."
        ) from None


def _is_of_pixels(tag: int, _kind: str | None, _length: int) -> bool:
    return tag >= _FIRST_OF_PIXELS


def _scale(header: DataSet, frame: Frame) -> Scale:
    groups = list(frame_groups(header))
    return scale_of(
        header, groups[frame.number] if frame.number < len(groups) else None, frame.file
    )


def _voxel_type(header: DataSet) -> np.dtype[Any]:
    """Of stored values: whole bytes, as many as the header allocates."""
    allocated = int(min(max(number(header, "BitsAllocated", 16), 8), 64))
    size = 1 << (-(-allocated // 8) - 1).bit_length()
    return np.dtype(f"{'i' if number(header, 'PixelRepresentation') == 1 else 'u'}{size}")
