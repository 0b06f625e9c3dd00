"""Checks of a header's sizes against what its file can hold, before memory is allocated."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from ..errors import SeveralVolumesError, UnreadableScanError, UnsupportedScanError
from .machine_limits import most_memory
from .streams import is_gzip_name

VoxelStorage: TypeAlias = Literal["plain", "compressed", "bzip2", "text"]
"""Encoding of voxels in a file: uncompressed, deflate, bzip2, or text digits."""
# Deflate codes at most 258 bytes in two bits. Bzip2 packs equal bytes a million to one, but no scan
# as small as this. A digit stands for at most 8 bytes.
_LARGEST_RATIOS: dict[VoxelStorage, int] = {
    "plain": 1,
    "compressed": 1032,
    "bzip2": 1 << 14,
    "text": 8,
}


def check_extents(path: Path, extents: Sequence[int]) -> None:
    """Raise unless `extents` are those of at least one 3D volume."""
    if not all(extent > 0 for extent in extents):
        raise UnreadableScanError(
            f"{path} has extents {_extents_text(extents)} and therefore no voxels; export the "
            "scan again."
        )
    if len(extents) < 3:
        raise UnsupportedScanError(
            f"{path} is a {len(extents)}D image of {_extents_text(extents)}; give a 3D volume."
        )


def storage_of(path: Path) -> VoxelStorage:
    """Return the encoding of voxels in a file, by its name alone."""
    return "compressed" if is_gzip_name(path) else "plain"


def check_size(
    path: Path, declared: int, storage: VoxelStorage = "plain", held: int | None = None
) -> None:
    """Raise unless `path` can hold `declared` bytes and the memory could take them.

    held: how many of them are in memory at a time, if not all.
    """
    there = path.stat().st_size
    if declared > there * _LARGEST_RATIOS[storage]:
        kind = {"plain": "", "text": " of text"}.get(storage, " compressed")
        raise UnreadableScanError(
            f"{path} is truncated or its header is damaged: the header declares {declared} bytes "
            f"but the file has {there}{kind}; copy it again."
        )
    check_memory(path, declared if held is None else held)


def check_memory(path: Path, declared: int) -> None:
    """Raise unless the memory could take so many bytes."""
    if declared > most_memory():
        raise UnreadableScanError(
            f"{path} needs {declared / 2**30:.1f} GiB of memory, but this program may use only "
            f"{most_memory() / 2**30:.1f} GiB; use a larger machine."
        )


def pick_volume(
    path: Path, extents: Sequence[int], chosen: int | None, *, takes_all: bool = True
) -> int:
    """Return the volume of a file to read, counted from 0 with the first further axis fastest.

    extents: i, j, k and all further axes. A file of one volume needs no choice and ignores one.
    takes_all: whether all of them could be read, too.
    Raises SeveralVolumesError if a choice is required but missing, and UnsupportedScanError for one
    that does not exist.
    """
    count = math.prod(extents[3:])
    if count == 1:
        return 0
    if chosen is None:
        found = f"{path} contains {count} volumes ({_extents_text(extents)})"
        alone = "save one as a separate file"
        other = "translate all with setting volume=all" if takes_all else alone
        raise SeveralVolumesError(
            f"{found}; select one of 0 to {count - 1} with setting volume=N, or {other}.",
            where_fixed=f"{found}, but only one can be used here; {alone}.",
        )
    if not 0 <= chosen < count:
        raise UnsupportedScanError(
            f"{path} has no volume {chosen}; choose one of 0 to {count - 1} with setting volume=N."
        )
    return chosen


def check_series(path: Path, extents: Sequence[int], *, is_series: bool) -> None:
    """Raise UnsupportedScanError unless all volumes of a file can be read in sequence."""
    if not is_series:
        raise UnsupportedScanError(
            f"{path} stores {math.prod(extents[3:])} components per voxel, which setting "
            "volume=all does not support; select one with setting volume=N."
        )


def _extents_text(extents: Sequence[int]) -> str:
    """Format extents, as in 512 x 512 x 400."""
    return " x ".join(str(extent) for extent in extents)
