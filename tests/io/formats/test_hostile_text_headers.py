"""Text headers of strangers: no byte from outside the inputs, nothing cut, nothing misread."""

import gzip
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as _SimpleITK
from support.io_files import ramp, read_file

from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.errors import ScanError, UnreadableScanError, WriteError
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.writing import write

sitk: Any = _SimpleITK
SECRET = b"SECRET" * 100
INNER = ramp().tobytes(order="F")
NRRD = b"""NRRD0004
type: int16
dimension: 3
space: left-posterior-superior
sizes: 3 4 5
space directions: (0.75,0,0) (0,1.25,0) (0,0,2.5)
kinds: domain domain domain
endian: little
encoding: raw
space origin: (1,2,3)
"""
METAIMAGE = b"""ObjectType = Image
NDims = 3
BinaryData = True
BinaryDataByteOrderMSB = False
CompressedData = False
TransformMatrix = 1 0 0 0 1 0 0 0 1
Offset = 1 2 3
ElementSpacing = 0.75 1.25 2.5
DimSize = 3 4 5
ElementType = MET_SHORT
"""
AFFINE = [[-0.75, 0, 0, -1], [0, -1.25, 0, -2], [0, 0, 2.5, 3], [0, 0, 0, 1]]
OUT = b"../outside/secret.raw"
PAIR = b"data file: " + OUT + b"\ndata file:==x.raw\n\n"
ATTACKS = {
    "CR": ("a.nrrd", NRRD + b"content: x\rdata file: " + OUT + b"\n\n" + INNER),
    "NUL": (
        "a.mha",
        METAIMAGE + b"ElementDataFile\0 = " + OUT + b"\nElementDataFile = LOCAL\n" + INNER,
    ),
    "NUL in a name": ("a.mhd", METAIMAGE + b"ElementDataFile = x.raw\0y\n"),
    "pair": ("a.nrrd", NRRD + PAIR),
    "long skip": ("a.nrrd", NRRD + b"k:=v\rbyte skip: " + b"A" * 60000 + b"\n\n" + INNER),
    "long skip on a line": ("a.nrrd", NRRD + b"byte skip: " + b"9" * 60000 + b"\n\n" + INNER),
    "named": ("a.nhdr", NRRD + b"data file: " + OUT + b"\n"),
    "listed": ("a.nhdr", NRRD + b"data file: LIST\n" + b"x.raw\n" * 4 + OUT + b"\n"),
    "numbered": ("a.nhdr", NRRD + b"data file: ../outside/%d.raw 1 5 1\n"),
    "listed, MetaImage": (
        "a.mhd",
        METAIMAGE + b"ElementDataFile = LIST\n" + b"x.raw\n" * 4 + OUT + b"\n",
    ),
    "overlong": ("a.nrrd", NRRD + b"k:=" + b"v" * (17 << 20) + b"\n\n" + INNER),
    "overlong MetaImage": ("a.mha", b"k" * (17 << 20)),
}


def lay(tmp_path: Path) -> Path:
    """A folder of inputs with a sound scan, beside a folder that is none of them."""
    inside, outside = tmp_path / "in", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "sound.nrrd").write_bytes(NRRD + b"\n" + INNER)
    (inside / "x.raw").write_bytes(INNER)
    (outside / "secret.raw").write_bytes(SECRET[: len(INNER)])
    for number in range(1, 6):
        (outside / f"{number}.raw").write_bytes(SECRET[: len(INNER) // 5])
    return inside


def read_all(inside: Path) -> dict[str, Any]:
    """The volumes that are read, after a search; what cannot be read is left out."""
    volumes: dict[str, Any] = {}
    for study in discover([inside], None).studies:
        try:
            volumes[str(study.name)] = read(study, 0)
        except ScanError:
            continue
    return volumes


def assert_clean(volumes: dict[str, Any]) -> None:
    assert np.array_equal(volumes["sound.nrrd"].voxels, ramp())
    assert all(b"SECRET" not in volume.voxels.tobytes("F") for volume in volumes.values())


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_header_reaches_nothing_outside_the_inputs(tmp_path: Path, attack: str) -> None:
    inside = lay(tmp_path)
    name, content = ATTACKS[attack]
    (inside / name).write_bytes(content)
    start = time.process_time()
    volumes = read_all(inside)
    assert time.process_time() - start < 5
    assert_clean(volumes)
    assert name not in volumes


@pytest.mark.parametrize("name", ["a.nhdr", "a.mhd"])
def test_a_header_that_changes_after_the_search_names_no_other_file(
    tmp_path: Path, name: str
) -> None:
    inside = lay(tmp_path)
    head, key = (NRRD, b"data file: ") if name == "a.nhdr" else (METAIMAGE, b"ElementDataFile = ")
    (inside / name).write_bytes(head + key + b"x.raw\n")
    study, _ = discover([inside], None).studies
    assert np.array_equal(read(study).voxels, ramp())
    (inside / name).write_bytes(head + key + OUT + b"\n")
    with pytest.raises(UnreadableScanError, match="was not found with it"):
        read(study)


@pytest.mark.parametrize("name", ["a.nhdr", "a.mhd"])
@pytest.mark.parametrize("form", [b"LIST\n%s\n", b"s%%d.raw 1 5 1\n"])
def test_every_file_of_a_list_belongs_to_its_study(tmp_path: Path, name: str, form: bytes) -> None:
    inside = lay(tmp_path)
    files = [f"s{number}.raw" for number in range(1, 6)]
    for file, part in zip(files, np.split(np.frombuffer(INNER, "<i2"), 5), strict=True):
        (inside / file).write_bytes(part.tobytes())
    listed = form.replace(b"%s", "\n".join(files).encode()).replace(b"%%", b"%")
    head, key = (NRRD, b"data file: ") if name == "a.nhdr" else (METAIMAGE, b"ElementDataFile = ")
    (inside / name).write_bytes(head + key + listed)
    study, _ = discover([inside], None).studies
    assert [file.name for file in study.files] == [name, *files]
    assert np.array_equal(read(study).voxels, ramp())
    (inside / "s3.raw").unlink()
    with pytest.raises(UnreadableScanError, match=r"s3\.raw is missing"):
        read(study)
    (inside / "s3.raw").write_bytes(b"short")
    with pytest.raises(UnreadableScanError, match=r"s3\.raw is truncated"):
        read(study)


def test_a_list_of_one_file_many_times_is_no_way_around_the_memory(tmp_path: Path) -> None:
    with (tmp_path / "x.raw").open("wb") as file:
        file.truncate(1 << 30)
    head = NRRD.replace(b"sizes: 3 4 5", b"sizes: 32768 16384 10000")
    (tmp_path / "a.nhdr").write_bytes(head + b"data file: LIST\n" + b"x.raw\n" * 10000)
    with pytest.raises(UnreadableScanError, match="GiB of memory"):
        read_file(tmp_path / "a.nhdr")


PAIRS = {
    "Latin-1": b"PatientName:=Sch\xe4del",
    "UTF-8": "PatientName:=Schädel".encode(),
    "not UTF-8 in a key": b"Sch\xe4del:=x",
    "end": b"City:=K\xf6ln \xc3",
    "escapes": b"Comment:=a\\nb\\\\c",
    "long": b"Protocol:=" + b"x" * 300,
    "longer": b"Protocol:=" + b"x" * 60000,
    "long key": b"P" * 300 + b":=x",
    "space": b"space:=right-anterior-superior-time",
    "encoding": b"encoding:=jpeg",
    "data file": b"data file:=scan0001.dcm",
    "kinds": b"kinds:=time domain",
    "space origin": b"space origin:=unknown",
    "byte skip": b"byte skip:=3",
    "units": b'space units:="cm"',
    "colon in a key": b"DICOM:x:=d",
    "value with a separator": b"k:=a:=b",
}


@pytest.mark.parametrize("pair", PAIRS)
def test_pairs_of_nrrd_are_kept_byte_for_byte_and_are_no_fields(tmp_path: Path, pair: str) -> None:
    source, target = tmp_path / "a.nrrd", tmp_path / "b.nrrd"
    source.write_bytes(NRRD + PAIRS[pair] + b"\n\n" + INNER)
    volume = read_file(source)
    assert np.array_equal(volume.voxels, ramp())
    np.testing.assert_array_equal(volume.affine, AFFINE)
    assert volume.notes == ()
    write(volume, target)
    assert b"\n" + PAIRS[pair] + b"\n" in target.read_bytes()
    assert np.array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(target))).T, ramp())


FIELDS = {
    "Latin-1": b"Protocol = Sch\xe4del",
    "UTF-8": "Protocol = Schädel".encode(),
    "end": b"City = K\xf6",
    "long": b"Protocol = " + b"x" * 300,
    "longer": b"Protocol = " + b"x" * 32767,
    "long name": b"P" * 254 + b" = x",
    "separator": b"Protocol = a = b : c",
    "DICOM": b"0010|0010 = Sch\xe4del^A",
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", ["a.mha", "a.mhd"])
def test_fields_of_metaimage_are_kept_byte_for_byte(tmp_path: Path, name: str, field: str) -> None:
    source, target = tmp_path / name, tmp_path / "out" / name
    source.write_bytes(FIELDS[field] + b"\n" + METAIMAGE + b"ElementDataFile = LOCAL\n" + INNER)
    volume = read_file(source)
    assert np.array_equal(volume.voxels, ramp())
    write(volume, target)
    assert b"\n" + FIELDS[field] + b"\n" in target.read_bytes()
    assert np.array_equal(sitk.GetArrayFromImage(sitk.ReadImage(str(target))).T, ramp())


@pytest.mark.parametrize("field", [b"P" * 255 + b" = x", b"P = " + b"x" * 32768])
def test_fields_that_are_too_long_for_metaio_are_refused(tmp_path: Path, field: bytes) -> None:
    path = tmp_path / "a.mha"
    path.write_bytes(field + b"\n" + METAIMAGE + b"ElementDataFile = LOCAL\n" + INNER)
    with pytest.raises(UnreadableScanError, match="longer than MetaIO can read"):
        read_file(path)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_lines_end_with_lf_or_crlf(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "a.nrrd").write_bytes((NRRD + b"k:=v\n\n").replace(b"\n", end) + INNER)
    (tmp_path / "a.mha").write_bytes(
        (METAIMAGE + b"K = v\nElementDataFile = LOCAL\n").replace(b"\n", end) + INNER
    )
    for name in ("a.nrrd", "a.mha"):
        assert np.array_equal(read_file(tmp_path / name).voxels, ramp())
        assert np.array_equal(
            sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / name))).T, ramp()
        )
        write(read_file(tmp_path / name), tmp_path / "out" / name)
        assert b"\r" not in (tmp_path / "out" / name).read_bytes().removesuffix(INNER)


@pytest.mark.parametrize("unit", ["microns", "micron", "micrometers", "µm", "\u03bcm"])
@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_units_in_the_plural_and_in_latin_1(tmp_path: Path, unit: str, coding: str) -> None:
    if coding == "latin-1" and not unit.isascii() and unit != "µm":
        return
    head = NRRD + f'space units: "{unit}" "{unit}" "{unit}"\n\n'.encode(coding)
    (tmp_path / "a.nrrd").write_bytes(head + INNER)
    volume = read_file(tmp_path / "a.nrrd")
    np.testing.assert_allclose(volume.spacing, (0.00075, 0.00125, 0.0025))
    assert volume.notes == (
        f"its header gives lengths in {unit}; they are converted to millimetres",
    )


def test_spacings_of_axes_that_are_not_of_space_may_be_missing(tmp_path: Path) -> None:
    head = (
        "NRRD0004\ntype: int16\ndimension: 4\nsizes: 1 3 4 5\nspacings: nan 1 2 3\n"
        "kinds: list domain domain domain\nendian: little\nencoding: raw\n\n"
    )
    (tmp_path / "a.nrrd").write_bytes(head.encode() + INNER)
    assert read_file(tmp_path / "a.nrrd").spacing == (1, 2, 3)


def test_a_time_without_a_direction_is_a_further_axis(tmp_path: Path) -> None:
    head = NRRD.replace(b"dimension: 3", b"dimension: 4").replace(b"3 4 5", b"3 4 5 1")
    head = head.replace(b"(0,0,2.5)", b"(0,0,2.5) none")
    head = head.replace(b"domain domain domain", b"domain domain domain time")
    (tmp_path / "a.nrrd").write_bytes(head + b"\n" + INNER)
    assert np.array_equal(read_file(tmp_path / "a.nrrd").voxels, ramp())


@pytest.mark.parametrize("type_name", ["int64", "double", "uint8"])
def test_digits_as_short_as_they_can_be(tmp_path: Path, type_name: str) -> None:
    head = NRRD.replace(b"int16", type_name.encode()).replace(b"raw", b"ascii")
    (tmp_path / "a.nrrd").write_bytes(head + b"\n" + b" ".join([b"7"] * 60))
    assert (read_file(tmp_path / "a.nrrd").voxels == 7).all()


@pytest.mark.parametrize(
    "name", ["a\nb.nhdr", " a.mhd", "a\rb.mhd", "a%d.mhd", "a%d.nhdr", "LISTE.nhdr"]
)
def test_names_that_a_header_cannot_show_are_not_written(tmp_path: Path, name: str) -> None:
    source = tmp_path / f"x{Path(name).suffix}"
    local = b"\n" if name.endswith("nhdr") else b"ElementDataFile = LOCAL\n"
    source.write_bytes((NRRD if name.endswith("nhdr") else METAIMAGE) + local + INNER)
    with pytest.raises(WriteError, match="could not contain the name of its voxels; rename"):
        write(read_file(source), tmp_path / "out" / name)


def nrrd_base(rng: random.Random) -> tuple[str, bytes, bytes]:
    pairs = b"key:=value\nSch\xe4del:=\xc3\xa4\n"
    more = [b"", b'space units: "mm" "mm" "mm"\n', b"content: a scan\n", b"byte skip: -1\n", pairs]
    head = NRRD + b"".join(rng.sample(more, rng.randrange(len(more))))
    kind = rng.randrange(5)
    if kind == 0:
        return "a.nrrd", head.replace(b"raw", b"gzip") + b"\n", gzip.compress(INNER)
    if kind == 1:
        digits = " ".join(map(str, np.frombuffer(INNER, "<i2"))).encode()
        return "a.nrrd", head.replace(b"raw", b"ascii") + b"\n", digits
    if kind == 2:
        return "a.nhdr", head + b"data file: x.raw\n", b""
    if kind == 3:
        return "a.nhdr", head + b"data file: LIST 3\nx.raw\n", b""
    return "a.nrrd", head + b"\n", INNER


def metaimage_base(rng: random.Random) -> tuple[str, bytes, bytes]:
    more = [b"", b"Modality = MET_MOD_CT\n", b"K = Sch\xe4del\n", b"DistanceUnits = mm\n"]
    head = METAIMAGE + b"".join(rng.sample(more, rng.randrange(len(more))))
    kind = rng.randrange(4)
    if kind == 0:
        packed = gzip.compress(INNER)
        head = head.replace(b"sedData = False", b"sedData = True")
        return "a.mha", head + b"ElementDataFile = LOCAL\n", packed
    if kind == 1:
        return "a.mhd", head + b"ElementDataFile = x.raw\n", b""
    if kind == 2:
        return "a.mhd", head + b"ElementDataFile = LIST 3\nx.raw\n", b""
    return "a.mha", head + b"ElementDataFile = LOCAL\n", INNER


WORDS = (
    *(b"\r", b"\0", b"\n", b"\r\n", b": ", b":=", b" = ", b"%d", b"LIST", b"..", b"-1", b"nan"),
    *(b"9" * 30, b"1e308", b"-9223372036854775808", b"A" * 3000, b"\xff\xfe", b"(", b"none"),
    *(b"../outside/secret.raw", b"/dev/zero", b"../outside/%d.raw 1 5 1", b"99999 99999 99999"),
    *(b"data file: ../outside/secret.raw\n", b"ElementDataFile = ../outside/secret.raw\n"),
    *(b"byte skip: -100000\n", b"line skip: 100000000\n", b"HeaderSize = -1\n", b"dimension: 16\n"),
)


def mutated(head: bytes, rng: random.Random) -> bytes:
    """A header after one to three changes of bytes, words and lines."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines, at = head.splitlines(keepends=True) or [b""], rng.randrange(len(head) + 1)
        line = rng.randrange(len(lines))
        match rng.choice((0, 0, 0, 1, 2, 3, 3, 4, 4, 5, 6)):
            case 0:
                head = head[:at] + bytes([rng.randrange(256)]) + head[at + 1 :]
            case 1:
                head = head[:at] + rng.choice(WORDS) + head[at:]
            case 2:
                lines[line] = rng.choice(lines)
                head = b"".join(lines)
            case 3:
                lines.insert(line, rng.choice((*lines, *WORDS)))
                head = b"".join(lines)
            case 4:
                del lines[line]
                head = b"".join(lines)
            case 5:
                key, _, _ = lines[line].partition(b" ")
                lines[line] = key + b" " + rng.choice(WORDS) + b"\n"
                head = b"".join(lines)
            case _:
                head = head[:at]
    return head


def try_mutated(
    tmp_path: Path, base: Callable[[random.Random], tuple[str, bytes, bytes]], seeds: range
) -> None:
    """Write what is read of mutated files; it must read back equal, by ITK too."""
    inside = lay(tmp_path)
    read_again = 0
    for seed in seeds:
        rng = random.Random(seed)
        name, head, voxels = base(rng)
        (inside / name).write_bytes(mutated(head, rng) + voxels)
        start = time.process_time()
        volumes = read_all(inside)
        assert time.process_time() - start < 5, seed
        assert_clean(volumes)
        if volume := volumes.get(name):
            target = tmp_path / "out" / name
            write(volume, target)
            assert np.array_equal(read_file(target).voxels, volume.voxels, equal_nan=True), seed
            by_itk = sitk.GetArrayFromImage(sitk.ReadImage(str(target))).T
            assert np.array_equal(by_itk, volume.voxels), seed
            read_again += 1
        (inside / name).unlink()
    assert read_again > len(seeds) // 20


BASES = [nrrd_base, metaimage_base]


@pytest.mark.parametrize("base", BASES)
def test_some_mutated_headers(tmp_path: Path, base: Any) -> None:
    try_mutated(tmp_path, base, range(25))


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_3000_mutated_headers(tmp_path: Path, base: Any) -> None:
    try_mutated(tmp_path, base, range(3000))
