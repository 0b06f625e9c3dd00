"""NRRD headers, read and written (teem.sourceforge.net/nrrd/format.html).

Geometry is taken as ITK's reader takes it, which tests compare.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UnreadableScanError
from ..files.header_limits import check_extents
from ..volume import AnyArray
from .stored_voxels import MOST_SKIPPED_BYTES, MOST_SKIPPED_LINES
from .text_header import (
    ONES,
    Encoding,
    FurtherAxis,
    HeaderFile,
    TextHeader,
    TextStorage,
    Vector3,
    shortest_number,
    text_of,
)

MOST_AXES = 16
_MAGIC = re.compile(rb"NRRD000[1-6]")
_NAMES = (
    *("content", "number", "type", "block size", "dimension", "space", "space dimension"),
    *("sizes", "spacings", "thicknesses", "axis mins", "axis maxs", "space directions"),
    *("centerings", "kinds", "labels", "units", "min", "max", "old min", "old max", "endian"),
    *("encoding", "line skip", "byte skip", "sample units", "space units", "space origin"),
    *("measurement frame", "data file"),
)
_FIELDS = {
    **{name: name for name in _NAMES},
    **{name.replace(" ", ""): name for name in _NAMES},
    "centers": "centerings",
}
_SEPARATOR = re.compile(rb":=|:[ \t]|:$")
_ENCODINGS: dict[str, Encoding] = {
    "raw": "raw",
    **dict.fromkeys(("txt", "text", "ascii"), "text"),
    "hex": "hex",
    **dict.fromkeys(("gz", "gzip"), "gzip"),
    **dict.fromkeys(("bz2", "bzip2"), "bzip2"),
}
_TYPES = {
    **dict.fromkeys(("signed char", "int8", "int8_t"), "i1"),
    **dict.fromkeys(("uchar", "unsigned char", "uint8", "uint8_t"), "u1"),
    **dict.fromkeys(
        ("short", "short int", "signed short", "signed short int", "int16", "int16_t"), "i2"
    ),
    **dict.fromkeys(("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"), "u2"),
    **dict.fromkeys(("int", "signed int", "int32", "int32_t"), "i4"),
    **dict.fromkeys(("uint", "unsigned int", "uint32", "uint32_t"), "u4"),
    **dict.fromkeys(
        (
            *("longlong", "long long", "long long int", "signed long long"),
            *("signed long long int", "int64", "int64_t"),
        ),
        "i8",
    ),
    **dict.fromkeys(
        ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"), "u8"
    ),
    "float": "f4",
    "double": "f8",
}
TYPE_NAMES = {
    "i1": "signed char",
    "u1": "unsigned char",
    "i2": "short",
    "u2": "unsigned short",
    "i4": "int",
    "u4": "unsigned int",
    "i8": "long long int",
    "u8": "unsigned long long int",
    "f4": "float",
    "f8": "double",
}
_DOMAIN = ("domain", "space", "time", "none", "???")
"""Kinds of axes that are no components, or unspecified."""
_KIND_SIZES = {
    **dict.fromkeys(
        ("list", "point", "vector", "contravariant-vector", "covariant-vector", "normal")
    ),
    **dict.fromkeys(("stub", "scalar"), 1),
    **dict.fromkeys(("complex", "2-vector"), 2),
    **dict.fromkeys(
        (
            *("3-color", "rgb-color", "rgbcolor", "rgb", "hsv-color", "hsvcolor", "hsv"),
            *("xyz-color", "3-vector", "3-gradient", "3-normal", "2d-symmetric-matrix"),
        ),
        3,
    ),
    **dict.fromkeys(
        (
            *("4-color", "rgba-color", "rgbacolor", "rgba", "4-vector", "quaternion"),
            *("2d-masked-symmetric-matrix", "2d-matrix"),
        ),
        4,
    ),
    "2d-masked-matrix": 5,
    "3d-symmetric-matrix": 6,
    "3d-masked-symmetric-matrix": 7,
    "3d-matrix": 9,
    "3d-masked-matrix": 10,
}
"""Number of components of each kind of their axis; None if it may be any."""

LPS_OF: dict[str, Vector3] = {
    **dict.fromkeys(("left-posterior-superior", "lps"), (1.0, 1.0, 1.0)),
    **dict.fromkeys(("right-anterior-superior", "ras"), (-1.0, -1.0, 1.0)),
    **dict.fromkeys(("left-anterior-superior", "las"), (1.0, -1.0, 1.0)),
}
"""Signs in LPS of the axes of each space that distinguishes left from right."""
_OTHER_SPACES = {
    "scanner-xyz": "scanner-xyz",
    "3d-right-handed": "3D-right-handed",
    "3d-left-handed": "3D-left-handed",
}
_WITH_TIME = {"rast": "ras", "last": "las", "lpst": "lps"}
"""Short names of spaces with time, and of those without."""
_VECTORS = re.compile(r"\s*(?:(?:\([^()]*\)|none)\s*)+", re.IGNORECASE)
_VECTOR = re.compile(r"\(([^()]*)\)|none", re.IGNORECASE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_QUOTED_BYTES = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NUMBERED = re.compile(rb"(.*%.*?)\s+(-?\d+)\s+(-?\d+)\s+(-?\d+)(?:\s+(\d+))?")
_LIST = re.compile(rb"LIST(?:\s+(\d+))?")


def read_header(file: HeaderFile) -> TextHeader:
    """Read the lines of a NRRD header. Raises ScanError and OSError."""
    lines = file.lines()
    if not _MAGIC.fullmatch(next(lines, b"").rstrip()):
        raise UnreadableScanError(
            f"{file.path} is not an NRRD file despite its name; check the file."
        )
    fields, pairs = _fields(lines, file)
    text = {name: text_of(value) for name, value in fields.items()}
    dimension = file.integer("dimension", text.get("dimension", ""))
    sizes = file.integers("sizes", text.get("sizes", ""))
    if not 1 <= dimension <= MOST_AXES or len(sizes) != dimension:
        raise file.damaged(f"gives {len(sizes)} sizes for {dimension} axes")
    check_extents(file.path, sizes)
    storage = _storage(text, fields.get("data file"), sizes, lines, file)
    kinds = _kinds(text, sizes, file)
    directions = _directions(text, sizes, file)
    axes, further = _axes(kinds, directions, sizes, file)
    is_series = further == (*range(3, dimension),)
    space = _space(text, file)
    spacing, direction = _grid(text, directions, axes, space, file)
    return TextHeader(
        sizes,
        axes,
        further,
        _origin(text, axes, space, sizes, file),
        spacing,
        direction,
        _unit(text, axes, file),
        space,
        storage,
        _kept_fields(fields, text, kinds, axes, space),
        tuple(pairs),
        _series_axes(fields, text, kinds, directions, file) if is_series else (),
    )


def _series_axes(
    fields: Mapping[str, bytes],
    text: Mapping[str, str],
    kinds: Sequence[str],
    directions: Sequence[tuple[float, ...] | None] | None,
    file: HeaderFile,
) -> tuple[FurtherAxis, ...]:
    """Return the description of the axes after the third."""
    spacings = text.get("spacings", "").split()
    labels, units = (_QUOTED_BYTES.findall(fields.get(name, b"")) for name in ("labels", "units"))
    origin, *_ = _vectors("space origin", text.get("space origin", "none"), file)
    found: list[FurtherAxis] = []
    for axis in range(3, len(kinds)):
        vector = (directions[axis] if directions else None) or ()
        is_fourth = len(kinds) == len(vector) == 4 and not any(vector[:3])
        steps, starts = [*vector[3:4]], [*(origin or ())[3:4], 0.0]
        if axis < len(spacings) and file.is_number(spacings[axis]):
            steps.append(float(spacings[axis]))
        step = next(filter(math.isfinite, steps), math.nan)
        label, unit = (words[axis] if axis < len(words) else b'""' for words in (labels, units))
        is_fourth = is_fourth and math.isfinite(step)
        found.append(FurtherAxis(step, starts[0], kinds[axis], label, unit, is_fourth))
    return tuple(found)


def _fields(lines: Iterator[bytes], file: HeaderFile) -> tuple[dict[str, bytes], list[bytes]]:
    """The fields, and the lines that are key/value pairs, up to the line after which voxels follow.

    A name of a field in front of := is a key like any other.
    """
    fields: dict[str, bytes] = {}
    pairs: list[bytes] = []
    for line in lines:
        if not line:
            break
        if line.startswith(b"#"):
            continue
        found = _SEPARATOR.search(line)
        if found is None:
            raise file.unknown_line()
        if found[0] == b":=":
            pairs.append(line)
            continue
        name = _FIELDS.get(text_of(line[: found.start()]).lower())
        if name is None:
            raise file.unknown_line()
        if name in fields:
            raise file.damaged(f"gives {name} twice")
        fields[name] = line[found.end() :].strip()
        if name == "data file" and _LIST.fullmatch(fields[name]):
            break
    return fields, pairs


def _storage(
    text: Mapping[str, str],
    data_file: bytes | None,
    sizes: tuple[int, ...],
    lines: Iterator[bytes],
    file: HeaderFile,
) -> TextStorage:
    if "encoding" not in text:
        raise file.damaged("does not state how its voxels are encoded")
    encoding = _ENCODINGS.get(text["encoding"].lower())
    if encoding is None:
        raise file.unsupported(
            "encodes its voxels as something other than raw, gzip, bzip2, ascii or hex; save it "
            "with the encoding gzip"
        )
    line_skip = file.integer("line skip", text.get("line skip", "0"))
    byte_skip = file.integer("byte skip", text.get("byte skip", "0"))
    least = 0 if encoding in ("text", "hex") else -MOST_SKIPPED_BYTES
    if not 0 <= line_skip <= MOST_SKIPPED_LINES or (
        encoding != "raw" and not least <= byte_skip <= MOST_SKIPPED_BYTES
    ):
        raise file.unsupported(
            "skips more before its voxels than its encoding allows; save it without a skip"
        )
    files = (file.path,) if data_file is None else _data_files(data_file, sizes, lines, file)
    return TextStorage(
        encoding,
        _voxel_type(text, encoding, file),
        files,
        start=file.position if data_file is None else 0,
        line_skip=line_skip,
        byte_skip=byte_skip,
        is_exact=not (line_skip or byte_skip),
    )


def _data_files(
    value: bytes, sizes: tuple[int, ...], lines: Iterator[bytes], file: HeaderFile
) -> tuple[Path, ...]:
    if found := _LIST.fullmatch(value):
        files, share = file.listed(lines), found[1]
    elif found := _NUMBERED.fullmatch(value):
        first, last, step = (int(found[part]) for part in (2, 3, 4))
        if not step:
            raise file.damaged("numbers its voxel files in steps of 0")
        numbers = range(first, last + (1 if step > 0 else -1), step)
        files, share = file.numbered(found[1], numbers), found[5]
    else:
        return (file.beside(value),)
    file.check_shares(len(files), sizes, int(share) if share else None)
    return files


def _voxel_type(text: Mapping[str, str], encoding: Encoding, file: HeaderFile) -> "np.dtype[Any]":
    name = " ".join(text.get("type", "").lower().split())
    if name == "block":
        raise file.unsupported(
            "stores blocks of bytes; convert it to one integer or float value per voxel"
        )
    if name not in _TYPES:
        raise file.damaged("does not give a known voxel type")
    voxel_type = np.dtype(_TYPES[name])
    endian = text.get("endian", "").lower()
    if encoding == "text" or voxel_type.itemsize == 1:
        return voxel_type
    if endian not in ("little", "big"):
        raise file.damaged("does not state the byte order of its voxels")
    return voxel_type.newbyteorder("<" if endian == "little" else ">")


def _check_count(
    words: Sequence[object], field: str, sizes: Sequence[int], file: HeaderFile
) -> None:
    if len(words) != len(sizes):
        raise file.damaged(f"gives {field} for {len(words)} of {len(sizes)} axes")


def _kinds(text: Mapping[str, str], sizes: tuple[int, ...], file: HeaderFile) -> list[str]:
    """Return the kind of each axis, in small letters and without its other names."""
    if "kinds" not in text:
        return ["???"] * len(sizes)
    words, kinds = text["kinds"].lower().split(), list[str]()
    _check_count(words, "kinds", sizes, file)
    for word, size in zip(words, sizes, strict=True):
        kind = word.replace("-sym-", "-symmetric-").replace("tensor", "matrix")
        expected = _KIND_SIZES.get(kind)
        if kind not in _DOMAIN and (kind not in _KIND_SIZES or expected not in (None, size)):
            raise file.damaged("gives an axis a kind that is not known or does not fit its size")
        if kind == "complex":
            raise file.unsupported(
                "stores complex voxels; convert it to one integer or float value per voxel"
            )
        kinds.append(kind)
    return kinds


def _directions(
    text: Mapping[str, str], sizes: tuple[int, ...], file: HeaderFile
) -> list[tuple[float, ...] | None] | None:
    """Return the vector of each axis; None for axes without one, and if no axis has one."""
    if "space directions" not in text:
        return None
    found = _vectors("space directions", text["space directions"], file)
    _check_count(found, "space directions", sizes, file)
    return found


def _vectors(field: str, text: str, file: HeaderFile) -> list[tuple[float, ...] | None]:
    if not _VECTORS.fullmatch(text):
        raise file.misplaced(field)
    vectors: list[tuple[float, ...] | None] = []
    for found in _VECTOR.finditer(text):
        if found[1] is None:
            vectors.append(None)
        else:
            words = found[1].split(",")
            vectors.append(tuple(file.number(field, word.strip()) for word in words))
    if len({len(vector) for vector in vectors if vector}) > 1:
        raise file.misplaced(field)
    return vectors


def _axes(
    kinds: Sequence[str],
    directions: Sequence[tuple[float, ...] | None] | None,
    sizes: tuple[int, ...],
    file: HeaderFile,
) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return the axes that are i, j and k, the first three that may be, and all others."""
    spatial = [
        axis
        for axis, kind in enumerate(kinds)
        if kind in _DOMAIN and kind != "time" and (directions is None or directions[axis])
    ]
    check_extents(file.path, [sizes[axis] for axis in spatial])
    i, j, k, *_ = spatial
    others = [axis for axis in range(len(sizes)) if axis not in (i, j, k)]
    others.sort(key=lambda axis: kinds[axis] in _DOMAIN)
    return (i, j, k), tuple(others)


def _space(text: Mapping[str, str], file: HeaderFile) -> str:
    named = text.get("space", "").lower()
    space = _WITH_TIME.get(named, named.removesuffix("-time"))
    if space and space not in LPS_OF and space not in _OTHER_SPACES:
        raise file.damaged("names a space that NRRD does not define")
    return space


def _grid(
    text: Mapping[str, str],
    directions: Sequence[tuple[float, ...] | None] | None,
    axes: tuple[int, int, int],
    space: str,
    file: HeaderFile,
) -> tuple[Vector3, tuple[float, ...]]:
    """Return spacing and direction in LPS: from directions, or else spacings along x, y, z."""
    if directions is None:
        spacing = _along(text, "spacings", axes, file) or ONES
        return spacing, tuple(np.eye(3).ravel().tolist())
    vectors: AnyArray = np.empty((3, 3))
    for column, axis in enumerate(axes):
        vectors[:, column] = _in_space("space directions", directions[axis], file)
    lengths = np.linalg.norm(vectors, axis=0)
    signs = np.array(LPS_OF.get(space, ONES))
    unit = np.divide(vectors * signs[:, None], lengths, where=lengths > 0, out=np.zeros((3, 3)))
    x, y, z = lengths.tolist()
    return (x, y, z), tuple(unit.ravel().tolist())


def _in_space(field: str, vector: tuple[float, ...] | None, file: HeaderFile) -> Vector3:
    """Return the part of a vector that is in space; a fourth one is in time."""
    if vector is None or len(vector) < 3:
        raise file.misplaced(field)
    x, y, z = (file.finite(field, number) for number in vector[:3])
    return x, y, z


def _along(
    text: Mapping[str, str], field: str, axes: tuple[int, int, int], file: HeaderFile
) -> Vector3 | None:
    """Return the lengths of a field along i, j and k; those along other axes may be NaN."""
    if field not in text:
        return None
    words = text[field].split()
    if len(words) <= max(axes):
        raise file.misplaced(field)
    i, j, k = (file.length(field, words[axis]) for axis in axes)
    return i, j, k


def _origin(
    text: Mapping[str, str],
    axes: tuple[int, int, int],
    space: str,
    sizes: tuple[int, ...],
    file: HeaderFile,
) -> Vector3:
    """Return the centre of the first voxel in LPS.

    Without a space it comes from axis mins: the edge of the first voxel, or its centre for nodes.
    """
    if "space origin" in text:
        vector, *others = _vectors("space origin", text["space origin"], file)
        if others:
            raise file.misplaced("space origin")
        x, y, z = np.multiply(
            _in_space("space origin", vector or (0.0, 0.0, 0.0), file), LPS_OF.get(space, ONES)
        ).tolist()
        return x, y, z
    mins = None if space or "space dimension" in text else _along(text, "axis mins", axes, file)
    maxs, spacings = (_along(text, field, axes, file) for field in ("axis maxs", "spacings"))
    if mins is None or (maxs is None and spacings is None):
        return (0.0, 0.0, 0.0)
    centers = text.get("centerings", "").lower().split()
    origin: list[float] = []
    for at, axis in enumerate(axes):
        is_node = axis < len(centers) and centers[axis] == "node"
        step = spacings[at] if spacings else ((maxs or mins)[at] - mins[at]) / sizes[axis]
        origin.append(mins[at] if is_node else mins[at] + step / 2)
    x, y, z = origin
    return x, y, z


def _unit(text: Mapping[str, str], axes: tuple[int, int, int], file: HeaderFile) -> str:
    """Return the one unit of the lengths: those of directions in space, or else of spacings."""
    quoted = {key: _QUOTED.findall(text.get(key, "")) for key in ("space units", "units")}
    in_space = quoted["space units"][:3]
    along = quoted["units"]
    along = [along[axis] for axis in axes] if len(along) > max(axes) else along
    orders = (in_space, along) if "space directions" in text else (along, in_space)
    named = next((found for order in orders if (found := _lengths(order))), {"mm"})
    if len(named) > 1:
        raise file.unsupported(
            f"gives lengths in several units ({', '.join(sorted(named))}); save it in millimetres"
        )
    return named.pop()


def _lengths(units: Sequence[str]) -> set[str]:
    return {unit.strip().lower() for unit in units if unit.strip()}


def _kept_fields(
    fields: Mapping[str, bytes],
    text: Mapping[str, str],
    kinds: Sequence[str],
    axes: tuple[int, int, int],
    space: str,
) -> tuple[bytes, ...]:
    """Return the lines of a result kept from its source: those on i, j and k, and on the scan."""
    kept: list[bytes] = []
    if fields.get("content"):
        kept.append(b"content: " + fields["content"])
    if space in _OTHER_SPACES:
        kept.append(f"space: {_OTHER_SPACES[space]}".encode())
    words = text.get("centerings", "").lower().split()
    centers = [word if word in ("cell", "node") else "???" for word in words]
    if len(centers) > max(axes):
        kept.append(f"centerings: {' '.join(centers[axis] for axis in axes)}".encode())
    named = (kinds[axis] if kinds[axis] == "space" else "domain" for axis in axes)
    kept.append(f"kinds: {' '.join(named)}".encode())
    labels = _QUOTED_BYTES.findall(fields.get("labels", b""))
    if len(labels) > max(axes):
        kept.append(b"labels: " + b" ".join(labels[axis] for axis in axes))
    return tuple(kept)


def header_bytes(
    header: TextHeader,
    shape: tuple[int, ...],
    voxel_type: "np.dtype[Any]",
    encoding: Encoding,
    data_file: bytes | None,
) -> bytes:
    """The header of a result in the grid of `header`, in LPS and millimetres, as ITK orders it.

    shape: extents along i, j and k, and along later axes if it is a series. data_file:
    name of the file of its voxels; None if they follow.
    """
    later = header.series_axes[: len(shape) - 3]

    def kept_as(*names: bytes) -> list[bytes]:
        return [line for line in header.fields if line.split(b":", 1)[0] in names]

    def along_all(name: bytes, words: Iterable[bytes]) -> list[bytes]:
        return [b" ".join([line, *words]) for line in kept_as(name)]

    vectors = (np.reshape(header.direction, (3, 3)) * header.spacing).T.tolist()
    [space], origin = kept_as(b"space") or [b"space: left-posterior-superior"], [*header.origin]
    directions = [*map(_vector, vectors), *("none" for _ in later)]
    if later and later[0].is_fourth:
        [time] = later
        space, origin = space + b"-time", [*origin, time.start]
        vectors = [*([*vector, 0.0] for vector in vectors), [0.0, 0.0, 0.0, time.step]]
        directions = map(_vector, vectors)
    lines: list[bytes] = [
        b"NRRD0004",
        b"# Complete NRRD file format specification at:",
        b"# http://teem.sourceforge.net/nrrd/format.html",
        *kept_as(b"content"),
        f"type: {TYPE_NAMES[voxel_type.str[1:]]}".encode(),
        f"dimension: {len(shape)}".encode(),
        space,
        f"sizes: {' '.join(map(str, shape))}".encode(),
        f"space directions: {' '.join(directions)}".encode(),
        *along_all(b"centerings", (b"???" for _ in later)),
        *along_all(b"kinds", (axis.kind.encode() for axis in later)),
        *along_all(b"labels", (axis.label for axis in later)),
        *_steps(later),
        *([b"endian: little"] if voxel_type.itemsize > 1 else []),
        f"encoding: {encoding}".encode(),
        f"space origin: {_vector(origin)}".encode(),
        *([b"data file: " + data_file] if data_file is not None else []),
        *header.metadata,
    ]
    return b"".join(line + b"\n" for line in chain(lines, [] if data_file else [b""]))


def _steps(later: Sequence[FurtherAxis]) -> Iterator[bytes]:
    """Return lines on the steps and units along axes that are not spatial, if known; those of the
    three before are in their directions.
    """
    if any(math.isfinite(axis.step) and not axis.is_fourth for axis in later):
        steps = (*[math.nan] * 3, *(axis.step for axis in later))
        yield f"spacings: {' '.join(map(shortest_number, steps))}".encode()
    if any(axis.unit != b'""' for axis in later):
        yield b" ".join([b"units:", *[b'""'] * 3, *(axis.unit for axis in later)])


def _vector(numbers: Sequence[float]) -> str:
    return f"({','.join(map(shortest_number, numbers))})"
