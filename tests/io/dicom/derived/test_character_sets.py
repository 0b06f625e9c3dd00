"""Text of a source goes on as it is stored, whether or not it is in the declared character set."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from pydicom.config import IGNORE
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import STORED, Phantom

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom_network.sent_objects import implicit_data
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation, Study
from cuda_cyclegan.io.writing import notes_of_result, write

pydicom: Any = _pydicom
CT = Phantom(slices=3)
MADE = Derivation("identity", "CT", "CT", "0", "0" * 64, STORED)
KEPT = "kept byte for byte although not valid in its character set"

UTF8, LATIN = "Ünal".encode(), "Ünal".encode("latin1")
KANJI = b"\x1b$B;3ED\x1b(B^\x1b$BB@O:\x1b(B"
SETS: dict[str, tuple[Sequence[str] | None, bytes, bool]] = {
    "UTF-8": (["ISO_IR 192"], UTF8, True),
    "Latin for UTF-8": (["ISO_IR 192"], LATIN, False),
    "Latin": (["ISO_IR 100"], LATIN, True),
    "UTF-8 for Latin": (["ISO_IR 100"], UTF8, False),
    "undeclared": (None, LATIN, False),
    "empty": ([], UTF8, False),
    "ASCII": (["ISO_IR 6"], LATIN, False),
    "unknown": (["LATIN-9 OF OURS"], LATIN, False),
    "a codec of Python": (["UTF-16"], LATIN, False),
    "one that is no text": (["base64"], LATIN, False),
    "Cyrillic": (["ISO_IR 144"], "Иван".encode("iso8859_5"), True),
    "Chinese": (["GB18030"], "王^小东".encode("gb18030"), True),
    "Japanese": (["", "ISO 2022 IR 87"], KANJI, True),
    "an escape that is not declared": (["ISO_IR 100"], KANJI, False),
    "a backslash within a character": (["ISO_IR 13"], "ソ".encode("shift_jis"), True),
    "Korean": (["", "ISO 2022 IR 149"], b"Hong^\x1b$)C\xb1\xe6\xb5\xbf", True),
}
"""Declared character sets, bytes of text, and whether they are what is declared."""

PLACEHOLDERS = {"a codec of Python": ["X_PYTH"], "one that is no text": ["X_PYTH"]}
"""Replacements of a declaration in which pydicom would write all text, or none."""

TOP = ("PatientID", "PatientName", "StudyDescription", "ReferringPhysicianName", "AccessionNumber")
"""Text of each length: LO, PN, LO, PN and SH."""


def put(data: Any, keyword: str, stored: bytes) -> None:
    """Store bytes as they are."""
    tag = tag_for_keyword(keyword)
    assert tag is not None
    vr = dictionary_VR(tag)
    data[keyword] = pydicom.dataelem.DataElement(tag, vr, b"", validation_mode=IGNORE)
    holder = pydicom.valuerep.PersonName(stored) if vr == "PN" else stored
    data[keyword]._value = holder  # which a setter would split at backslashes


def declare(data: Any, declared: Sequence[str] | None) -> None:
    if declared is None:
        del data.SpecificCharacterSet
    else:
        tag = tag_for_keyword("SpecificCharacterSet")
        data["SpecificCharacterSet"] = pydicom.DataElement(
            tag, "CS", list(declared) or None, validation_mode=IGNORE
        )


def elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Text of a file in explicit little endian at any depth, read by the rules of PS3.5 7.1."""
    at = content.index(b"DICM") + 4
    while at < len(content):
        group, number, vr = struct.unpack_from("<HH2s", content, at)
        tag = group << 16 | number
        if tag in (0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD):
            at += 8
            continue
        long = vr in (b"OB", b"OW", b"SQ", b"UC", b"UN", b"UT", b"OF", b"OD")
        size = struct.unpack_from("<I", content, at + 8)[0] if long else None
        start, size = (
            (at + 12, size) if long else (at + 8, *struct.unpack_from("<H", content, at + 6))
        )
        at = start if vr == b"SQ" else start + (size or 0)
        if vr != b"SQ" and tag < 0x7FE00010:
            yield tag, content[start : start + (size or 0)].rstrip(b" \0")


def stored(file: Path, keyword: str) -> list[bytes]:
    tag = tag_for_keyword(keyword)
    return [text for found, text in elements(file.read_bytes()) if found == tag]


def study_in(folder: Path, *, keep_private: bool = False) -> Study:
    choice = Choice(fewest_slices=2, keep_private=keep_private)
    [study] = discover([folder], None, choice).studies
    return study


def derived(folder: Path, *, keep_private: bool = False) -> tuple[Path, str]:
    """The first file of a result, and the notes about it."""
    volume = read(study_in(folder, keep_private=keep_private))
    into = folder.parent / "out"
    write(volume, into, MADE)
    return min(into.iterdir()), "; ".join(notes_of_result(volume, into))


def ours(file: Path) -> None:
    """Assert that the program's own text is ASCII, as in every character set."""
    assert stored(file, "SeriesDescription")[0].startswith(b"Synthetic CT (identity)")
    assert b"Synthetic image" in stored(file, "ImageComments")[0]


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_text_is_carried_byte_for_byte(tmp_path: Path, name: str, syntax: str) -> None:
    declared, text, is_sound = SETS[name]

    def edit(data: Any, _: int) -> None:
        declare(data, PLACEHOLDERS.get(name, declared))
        for keyword in TOP:
            put(data, keyword, text)
        code, other = pydicom.Dataset(), pydicom.Dataset()
        put(code, "CodeValue", b"1")
        put(code, "CodingSchemeDesignator", b"99X")
        put(code, "CodeMeaning", text)
        put(other, "PatientID", text + b"2")
        data.ProcedureCodeSequence, data.OtherPatientIDsSequence = [code], [other]
        data.file_meta.TransferSyntaxUID = syntax

    for file in CT.write(tmp_path / "in", edit):
        if declared and name in PLACEHOLDERS:
            stands, meant = PLACEHOLDERS[name][0].encode(), declared[0].encode()
            file.write_bytes(file.read_bytes().replace(stands, meant))
    made, notes = derived(tmp_path / "in")
    for keyword in TOP:
        assert text in stored(made, keyword), keyword
    assert stored(made, "CodeMeaning")[0] == text
    assert text + b"2" in stored(made, "PatientID")
    joined_set = None if declared is None else "\\".join(declared).encode()
    assert stored(made, "SpecificCharacterSet") == ([] if joined_set is None else [joined_set])
    ours(made)
    assert (KEPT in notes) == (not is_sound)
    assert is_sound or all(f"{keyword} ({KEPT}" in notes for keyword in (*TOP, "CodeMeaning"))


def test_two_patients_stay_two(tmp_path: Path) -> None:
    """The patients share a SeriesInstanceUID and differ only in a byte that is not UTF-8."""
    for patient in ("Ä123", "Ü123"):

        def edit(data: Any, at: int, patient: str = patient) -> None:
            declare(data, ["ISO_IR 192"])
            put(data, "PatientID", patient.encode("latin1"))
            data.SOPInstanceUID = f"1.2.{ord(patient[0])}.{at + 1}"

        CT.write(tmp_path / "in", edit, prefix=patient)
    choice = Choice(fewest_slices=2)
    studies = discover([tmp_path / "in"], None, choice).studies
    assert [len(study.files) for study in studies] == [3, 3]
    assert len({study.name for study in studies}) == 2


def test_an_enhanced_object_carries_text_as_it_is(tmp_path: Path) -> None:
    write_enhanced(replace(CT, modality="MR", intercept=0.0), tmp_path / "in" / "one")
    data = pydicom.dcmread(tmp_path / "in" / "one")
    declare(data, ["ISO_IR 192"])
    for keyword in TOP:
        put(data, keyword, LATIN)
    data.save_as(tmp_path / "in" / "one")
    volume = read(study_in(tmp_path / "in"))
    write(volume, tmp_path / "out", replace(MADE, target="MR"))
    [made] = (tmp_path / "out").iterdir()
    assert all(LATIN in stored(made, keyword) for keyword in TOP)


def test_private_text_is_carried_too_at_any_depth(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        declare(data, ["ISO_IR 192"])
        item = pydicom.Dataset()
        item.private_block(0x0019, "MAKER", create=True).add_new(3, "LO", LATIN)
        block = data.private_block(0x0019, "MAKER", create=True)
        block.add_new(4, "LO", LATIN)
        block.add_new(5, "SQ", [item])

    CT.write(tmp_path / "in", edit)
    made, _ = derived(tmp_path / "in", keep_private=True)
    found = [text for tag, text in elements(made.read_bytes()) if tag >> 16 == 0x0019]
    assert found.count(LATIN) == 2


@pytest.mark.parametrize("identifier", [b"A\\B", b"A\tB", b"x" * 80, LATIN * 20])
def test_a_patient_id_is_never_changed(tmp_path: Path, identifier: bytes) -> None:
    CT.write(tmp_path / "in", lambda data, _: put(data, "PatientID", identifier))
    made, notes = derived(tmp_path / "in")
    assert stored(made, "PatientID") == [identifier]
    assert "PatientID (kept although " in notes


@pytest.mark.parametrize("identifier", [b"A\\B", b"A\tB", b"x" * 80])
def test_other_identifiers_are_whole_or_not_there(tmp_path: Path, identifier: bytes) -> None:
    CT.write(tmp_path / "in", lambda data, _: put(data, "AccessionNumber", identifier))
    made, notes = derived(tmp_path / "in")
    assert stored(made, "AccessionNumber") == [b""]
    assert "AccessionNumber (omitted, " in notes


def test_cut_text_stays_in_its_character_set(tmp_path: Path) -> None:
    long = ("Ü" * 100).encode()
    CT.write(
        tmp_path / "in",
        lambda data, _: (declare(data, ["ISO_IR 192"]), put(data, "StudyDescription", long)),
    )
    made, notes = derived(tmp_path / "in")
    assert stored(made, "StudyDescription") == ["Ü".encode() * 64]
    assert "StudyDescription (truncated to 64 characters)" in notes


def test_text_of_another_scan_says_its_own_character_set(tmp_path: Path) -> None:
    """Names of the makers of both scans stand in one object."""
    studies: list[Study] = []
    for name, declared, text in (("a", ["ISO_IR 192"], UTF8), ("b", ["ISO_IR 100"], LATIN)):

        def edit(data: Any, _: int, declared: list[str] = declared, text: bytes = text) -> None:
            declare(data, declared)
            put(data, "InstitutionName", text)

        phantom = replace(CT, series=f"1.2.3.{ord(name)}")
        phantom.write(tmp_path / name, edit)
        studies.append(study_in(tmp_path / name))
    first, second = (read(study) for study in studies)
    header = replace(first.header, others=(second.header,))  # type: ignore[type-var]
    write(replace(first, header=header), tmp_path / "out", MADE)
    data = pydicom.dcmread(min((tmp_path / "out").iterdir()))
    reported = [item.get("InstitutionName") for item in data.ContributingEquipmentSequence]
    assert reported[:2] == ["Ünal", "Ünal"]


def test_text_goes_to_a_peer_that_takes_implicit_vr_as_it_is(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        declare(data, ["ISO_IR 192"])
        item = pydicom.Dataset()
        for each in (data, item):
            put(each, "PatientID", LATIN)
        data.OtherPatientIDsSequence = [item]

    first, *_ = CT.write(tmp_path / "in", edit)
    assert implicit_data(first).count(LATIN) == 2


def test_an_item_has_its_own_character_set(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        declare(data, ["ISO_IR 192"])
        put(data, "PatientID", UTF8)
        item = pydicom.Dataset()
        item.SpecificCharacterSet = "ISO_IR 100"
        put(item, "PatientID", LATIN)
        data.OtherPatientIDsSequence = [item]

    CT.write(tmp_path / "in", edit)
    made, notes = derived(tmp_path / "in")
    assert stored(made, "PatientID") == [UTF8, LATIN]
    assert KEPT not in notes
