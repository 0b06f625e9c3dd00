"""MetaImage headers, read and written (itk.org/Wiki/ITK/MetaIO/Documentation).

They are interpreted as by MetaIO and ITK, with which tests compare.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as _nibabel
import numpy as np

from ..errors import UnreadableScanError
from ..files.header_limits import check_extents
from ..volume import LPS_TO_RAS
from .text_header import FurtherAxis, HeaderFile, TextHeader, TextStorage, shortest_number, text_of

nibabel: Any = _nibabel  # typed only in part

MOST_AXES = 10
LONGEST_NAME, _LONGEST_VALUE = 254, 32767
"""Limits in bytes. MetaIO, which reads the results, writes past its buffers at longer ones."""
_SEPARATOR = re.compile(rb"[=:]")
_TYPES = {
    "MET_ASCII_CHAR": "i1",
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_LONG": "i4",
    "MET_ULONG": "u4",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
"""A long has 4 bytes in these files, on every machine."""
_TYPE_NAMES = {code: name for name, code in _TYPES.items()}
_ORIGIN = ("Position", "Offset", "Origin")
_DIRECTION = ("Orientation", "Rotation", "TransformMatrix")
"""Names of one field; of several, the last one counts."""
_SCALE = {"ElementToIntensityFunctionSlope": 1.0, "ElementToIntensityFunctionOffset": 0.0}
"""Fields of the line from stored numbers to values, with what says that they are the same."""
_KNOWN = {
    *("ObjectType", "ObjectSubType", "NDims", "Name", "ID", "ParentID", "Comment", "Color"),
    *("BinaryData", "ElementByteOrderMSB", "BinaryDataByteOrderMSB", "CompressedData"),
    *("CompressedDataSize", "CenterOfRotation", "DistanceUnits", "AnatomicalOrientation"),
    *("ElementSpacing", "ElementSize", "ElementSizeValid", "DimSize", "HeaderSize", "Modality"),
    *("ImagePosition", "SequenceID", "ElementMin", "ElementMax", "ElementNumberOfChannels"),
    *("ElementNBits", "ElementType", "ElementDataFile", *_SCALE, *_ORIGIN, *_DIRECTION),
}
_LIST = re.compile(rb"LIST(?:\s+(\d+)D?)?")
_NUMBERED = re.compile(rb"(.*%.*?)\s+(\d+)\s+(\d+)(?:\s+(\d+))?")
_OPPOSITE = str.maketrans("LRPAIS", "RLAPSI")


def read_header(file: HeaderFile) -> TextHeader:
    """Read the lines of a MetaImage header. Raises ScanError and OSError."""
    lines = file.lines()
    fields, metadata = _fields(lines, file)
    if "ElementDataFile" not in fields or "DimSize" not in fields:
        raise UnreadableScanError(
            f"{file.path} is not a MetaImage file despite its name; check the file."
        )
    text = {name: text_of(value) for name, value in fields.items()}
    axes = file.integer("NDims", text.get("NDims", ""))
    sizes = file.integers("DimSize", text["DimSize"])
    if not 1 <= axes <= MOST_AXES or len(sizes) != axes:
        raise file.damaged(f"gives {len(sizes)} sizes in DimSize for {axes} axes in NDims")
    for field, nothing in _SCALE.items():
        if field in text and not file.is_number(text[field], nothing):
            raise file.unsupported(
                f"scales its values by {field}, which ITK ignores; save it with unscaled values"
            )
    check_extents(file.path, sizes)
    channels = file.integer("ElementNumberOfChannels", text.get("ElementNumberOfChannels", "1"))
    if channels < 1:
        raise file.damaged(f"gives {channels} as ElementNumberOfChannels")
    storage = _storage(text, fields["ElementDataFile"], sizes, lines, file)
    (u, v, w, *steps), (x, y, z, *starts), direction = _grid(text, axes, file)
    stored = (channels, *sizes) if channels > 1 else sizes
    i, j, k = range(len(stored) - axes, len(stored) - axes + 3)
    return TextHeader(
        stored,
        (i, j, k),
        tuple(axis for axis in range(len(stored)) if axis not in (i, j, k)),
        (x, y, z),
        (u, v, w),
        direction,
        _unit(text),
        "lps" if any(field in text for field in _DIRECTION) else "",
        storage,
        (b"DistanceUnits = mm",) if _has_unit(text) else (),
        tuple(metadata),
        () if channels > 1 else tuple(map(FurtherAxis, steps, starts)),
    )


def _fields(lines: Iterator[bytes], file: HeaderFile) -> tuple[dict[str, bytes], list[bytes]]:
    """Return the fields, and the lines of those unknown to MetaIO, up to the last one."""
    fields: dict[str, bytes] = {}
    metadata: list[bytes] = []
    for line in lines:
        key, *values = (part.strip() for part in _SEPARATOR.split(line, maxsplit=1))
        if not key and not values:
            continue
        if not key or not values:
            raise file.unknown_line()
        name = key.decode("latin-1")
        if name in fields:
            raise file.damaged(f"gives {name} twice" if name in _KNOWN else "gives a field twice")
        fields[name] = values[0]
        if name == "ElementDataFile":
            break
        if len(key) > LONGEST_NAME or len(values[0]) > _LONGEST_VALUE:
            raise file.damaged("has a field longer than MetaIO can read")
        if name not in _KNOWN and values[0]:
            metadata.append(key + b" = " + values[0])
    return fields, metadata


def _storage(
    text: Mapping[str, str],
    data_file: bytes,
    sizes: tuple[int, ...],
    lines: Iterator[bytes],
    file: HeaderFile,
) -> TextStorage:
    is_local = data_file.lower() == b"local"
    is_packed = _is_true(text, "CompressedData", file)
    is_binary = _is_true(text, "BinaryData", file, default=True)
    skipped = file.integer("HeaderSize", text.get("HeaderSize", "0"))
    size = file.integer("CompressedDataSize", text.get("CompressedDataSize", "0"))
    is_plain = not is_local and not is_packed and is_binary
    if size < 0 or skipped < -1 or (is_packed and not is_binary) or (skipped != 0 and not is_plain):
        raise file.damaged("does not state correctly where its voxels begin and end")
    files = (file.path,) if is_local else _data_files(data_file, sizes, lines, file)
    return TextStorage(
        "zlib" if is_packed else "raw" if is_binary else "text",
        _voxel_type(text, is_binary, file),
        files,
        start=file.position if is_local else 0,
        byte_skip=skipped,
        packed_bytes=size if size and is_packed and len(files) == 1 else None,
        is_exact=skipped >= 0,
    )


def _data_files(
    value: bytes, sizes: tuple[int, ...], lines: Iterator[bytes], file: HeaderFile
) -> tuple[Path, ...]:
    if found := _LIST.fullmatch(value):
        files, share = file.listed(lines), int(found[1] or 0)
        axes = share if 0 < share <= len(sizes) else None
    elif found := _NUMBERED.fullmatch(value):
        first, last, step = int(found[2]), int(found[3]), int(found[4] or 1)
        if not step:
            raise file.damaged("numbers its voxel files in steps of 0")
        files, axes = file.numbered(found[1], range(first, last + 1, step)), None
    else:
        return (file.beside(value),)
    file.check_shares(len(files), sizes, axes)
    return files


def _voxel_type(text: Mapping[str, str], is_binary: bool, file: HeaderFile) -> "np.dtype[Any]":
    named = text.get("ElementType", "")
    name = named.removesuffix("_ARRAY")
    if name not in _TYPES:
        if not re.fullmatch(r"MET_[A-Z_]{1,20}", named):
            raise file.damaged("does not give a known voxel type")
        raise file.unsupported(
            f"stores {named} voxels; convert it to one integer or float value per voxel"
        )
    if not is_binary:
        return np.dtype(_TYPES[name])
    orders = {
        _is_true(text, field, file)
        for field in ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")
        if field in text
    }
    if len(orders) > 1:
        raise file.damaged("gives two different byte orders")
    return np.dtype(_TYPES[name]).newbyteorder(">" if orders == {True} else "<")


def _is_true(
    text: Mapping[str, str], field: str, file: HeaderFile, *, default: bool = False
) -> bool:
    """Return whether a field is true, by the first letter as in MetaIO."""
    if field not in text:
        return default
    letter = text[field][:1].lower()
    if letter not in ("t", "1", "f", "0"):
        raise file.damaged(f"gives {field} as neither True nor False")
    return letter in ("t", "1")


def _grid(
    text: Mapping[str, str], axes: int, file: HeaderFile
) -> tuple[list[float], list[float], tuple[float, ...]]:
    """Return spacing and origin along all axes, and the direction, whose rows in the file are i, j
    and k.
    """
    spacing, origin, matrix = [1.0] * axes, [0.0] * axes, np.eye(axes)
    for field in ("ElementSize", "ElementSpacing"):
        if field in text:
            spacing = list(file.lengths(field, text[field], axes))
    for field in _ORIGIN:
        if field in text:
            origin = list(file.lengths(field, text[field], axes))
    for field in _DIRECTION:
        if field in text:
            matrix = np.reshape(file.lengths(field, text[field], axes * axes), (axes, axes))
    return spacing, origin, tuple(matrix[:3, :3].T.ravel().tolist())


def _unit(text: Mapping[str, str]) -> str:
    """Return the unit of lengths; MetaIO's ? for an unknown one counts as none."""
    return text["DistanceUnits"].lower() if _has_unit(text) else "mm"


def _has_unit(text: Mapping[str, str]) -> bool:
    return text.get("DistanceUnits", "?") not in ("", "?")


def header_bytes(
    header: TextHeader,
    shape: tuple[int, ...],
    voxel_type: "np.dtype[Any]",
    packed_bytes: int | None,
    data_file: bytes | None,
) -> bytes:
    """Return the header of a result in the grid of `header`, in millimetres, as ITK orders it.

    shape: extents along i, j and k, and along later axes if it is a series.
    packed_bytes: length of the packed voxels, on which that of the header does not depend; None if
    they are not packed. data_file: name of the file of the voxels; None if they follow.
    """
    size = [] if packed_bytes is None else [f"CompressedDataSize = {packed_bytes:<20}".encode()]
    directions, later = np.reshape(header.direction, (3, 3)), header.series_axes[: len(shape) - 3]
    affine = np.eye(4)
    affine[:3, :3] = directions
    codes = "".join(nibabel.aff2axcodes(LPS_TO_RAS @ affine))
    codes = codes.translate(_OPPOSITE) + "?" * len(later)
    matrix = np.eye(len(shape))
    matrix[:3, :3] = directions.T
    dates = [line for line in header.metadata if line.startswith(b"AcquisitionDate =")]
    others = [line for line in header.metadata if line not in dates]
    lines = [
        b"ObjectType = Image",
        f"NDims = {len(shape)}".encode(),
        *dates,
        b"BinaryData = True",
        b"BinaryDataByteOrderMSB = False",
        f"CompressedData = {packed_bytes is not None}".encode(),
        *size,
        f"TransformMatrix = {_numbers(matrix.ravel().tolist())}".encode(),
        f"Offset = {_numbers((*header.origin, *(axis.start for axis in later)))}".encode(),
        f"CenterOfRotation = {_numbers([0.0] * len(shape))}".encode(),
        *header.fields,
        f"AnatomicalOrientation = {codes}".encode(),
        f"ElementSpacing = {_numbers((*header.spacing, *(axis.step for axis in later)))}".encode(),
        *others,
        f"DimSize = {_numbers(shape)}".encode(),
        f"ElementType = {_TYPE_NAMES[voxel_type.str[1:]]}".encode(),
        b"ElementDataFile = " + (b"LOCAL" if data_file is None else data_file),
    ]
    return b"".join(line + b"\n" for line in lines)


def _numbers(numbers: Sequence[float]) -> str:
    return " ".join(map(shortest_number, numbers))
