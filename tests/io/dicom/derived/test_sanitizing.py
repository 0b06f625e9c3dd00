"""Errors of a source header: corrected in the result, reported by name, and judged by dciodvfy."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydicom.config import IGNORE
from pydicom.datadict import dictionary_VR, tag_for_keyword
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_judges import conformance_errors, is_part_10, judge
from support.dicom_phantoms import STORED, Phantom

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.derived.sanitizing import kept, sanitized_elements
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation, Volume
from cuda_cyclegan.io.writing import notes_of_result, write

pydicom: Any = _pydicom
CT = Phantom(slices=4)
MR = replace(CT, modality="MR", intercept=0.0)
DERIVATION = Derivation("identity", "CT", "CT", "0", "0" * 64, STORED)
TO_MR = replace(DERIVATION, target="MR")


def put(data: Any, keyword: str, value: Any) -> None:
    """Store a value whatever the standard says of it."""
    tag = tag_for_keyword(keyword)
    assert tag is not None
    data[keyword] = pydicom.DataElement(tag, dictionary_VR(tag), value, validation_mode=IGNORE)


def read_in(folder: Path) -> Volume:
    [study] = discover([folder], None, Choice(fewest_slices=2)).studies
    return read(study)


def derived(folder: Path, into: Path, derivation: Derivation = DERIVATION) -> list[Any]:
    write(read_in(folder), into, derivation)
    paths = sorted(into.iterdir())
    assert conformance_errors(paths[0]) == set()
    assert is_part_10(paths[0])
    return [pydicom.dcmread(path) for path in paths]


LONG = "x" * 100
CASES: list[tuple[str, Any, Any, str]] = [
    ("StudyDescription", LONG, "x" * 64, "truncated to 64 characters"),
    ("StudyDescription", "a\nb", "a b", "control characters removed"),
    ("StudyDescription", ["a", "b"], "a/b", "multiple values joined into one"),
    ("PatientName", f"{LONG}^Jane", "x" * 64, "truncated to 64 characters"),
    ("AccessionNumber", LONG, "", "omitted, longer than 16 characters"),
    ("StudyID", LONG, "", "omitted, longer than 16 characters"),
    ("BodyPartExamined", "head", "HEAD", "converted to upper case"),
    ("BodyPartExamined", "Kopf/Hals", None, "omitted, not a valid code"),
    ("PatientSex", "W", "", "omitted, not a valid code"),
    ("PatientAge", "50Y", "050Y", "padded to 3 digits"),
    ("PatientAge", "***", None, "omitted, not an age"),
    ("PatientBirthDate", "1970.01.02", "19700102", "rewritten in DICOM date format"),
    ("StudyDate", "20201399", "", "omitted, not a date"),
    ("StudyTime", "10:11:12", "101112", "rewritten in DICOM time format"),
    ("ContentTime", "noon", None, "omitted, not a time of day"),
    ("PatientWeight", "70.00000000000000001", "70.0", "rounded to 16 characters"),
    ("StationName", LONG, "x" * 16, "truncated to 16 characters"),
    ("FrameOfReferenceUID", "", ..., "newly generated because the source has none"),
    (
        "ClinicalTrialSubjectID",
        "S1",
        None,
        "omitted because the source's clinical trial attributes are incomplete",
    ),
    ("Laterality", "R", None, "omitted because the body part has no laterality"),
]


@pytest.mark.parametrize(("keyword", "value", "expected", "fault"), CASES)
def test_a_value_is_mended_and_the_note_names_it_but_not_its_value(
    tmp_path: Path, keyword: str, value: Any, expected: Any, fault: str
) -> None:
    CT.write(tmp_path / "in", lambda data, _: put(data, keyword, value))
    made = derived(tmp_path / "in", tmp_path / "out")
    for data in made:
        found = data.get(keyword)
        if keyword == "StationName":
            found = data.ContributingEquipmentSequence[0].StationName
        if expected is None:
            assert found is None
        elif expected is ...:
            assert found.startswith("2.25.")
        else:
            assert str(found) == expected
    [note] = notes_of_result(read_in(tmp_path / "in"), tmp_path / "out")
    assert note == (
        f"its header violates the DICOM standard; changed in the result: {keyword} ({fault})"
    )


def test_a_number_that_is_none_is_left_out(tmp_path: Path) -> None:
    for path in CT.write(tmp_path / "in", lambda data, _: put(data, "PatientWeight", "123.25")):
        path.write_bytes(path.read_bytes().replace(b"123.25", b"heavy "))
    assert "PatientWeight" not in derived(tmp_path / "in", tmp_path / "out")[0]
    [note] = notes_of_result(read_in(tmp_path / "in"), tmp_path / "out")
    assert "PatientWeight (omitted, not parsable)" in note


def test_a_sound_source_has_no_note(tmp_path: Path) -> None:
    CT.write(tmp_path / "in")
    assert notes_of_result(read_in(tmp_path / "in"), tmp_path / "out") == ()


def test_a_nifti_result_has_none_of_the_faulty_values(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", lambda data, _: put(data, "StudyDescription", LONG))
    assert notes_of_result(read_in(tmp_path / "in"), tmp_path / "out.nii.gz") == ()


def test_a_patient_stays_the_same_one(tmp_path: Path) -> None:
    """A PatientID that is cut is that of nobody, or of somebody else."""
    CT.write(tmp_path / "in", lambda data, _: put(data, "PatientID", LONG))
    write(read_in(tmp_path / "in"), tmp_path / "out", DERIVATION)
    made = pydicom.dcmread(tmp_path / "out" / "0001.dcm")
    assert made.PatientID == LONG
    [note] = notes_of_result(read_in(tmp_path / "in"), tmp_path / "out")
    assert "PatientID (kept although longer than 64 characters)" in note


def test_long_decimals_of_each_slice_are_rounded_where_they_lie(tmp_path: Path) -> None:
    def edit(data: Any, at: int) -> None:
        put(data, "ImagePositionPatient", ["-30.12345678901234567", "-20", f"{10 + 2 * at}"])

    CT.write(tmp_path / "in", edit)
    made = derived(tmp_path / "in", tmp_path / "out")
    for at, data in enumerate(made):
        texts = str(data["ImagePositionPatient"].value)
        assert [float(value) for value in data.ImagePositionPatient] == pytest.approx(
            [-30.123456789012345, -20.0, 10.0 + 2 * at], abs=1e-10
        ), texts
    [note] = notes_of_result(read_in(tmp_path / "in"), tmp_path / "out")
    assert "ImagePositionPatient (rounded to 16 characters)" in note


def code(meaning: str) -> Any:
    item = pydicom.Dataset()
    item.CodeValue, item.CodingSchemeDesignator = "1", "99X"
    put(item, "CodeMeaning", meaning)
    return item


def test_a_value_in_a_sequence_is_mended_and_an_empty_code_is_left_out(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.ProcedureCodeSequence = [code(LONG), code("")]

    CT.write(tmp_path / "in", edit)
    [item] = derived(tmp_path / "in", tmp_path / "out")[0].ProcedureCodeSequence
    assert item.CodeMeaning == "x" * 64
    [note] = notes_of_result(read_in(tmp_path / "in"), tmp_path / "out")
    assert "CodeMeaning (truncated to 64 characters)" in note
    assert "ProcedureCodeSequence (omitted, not a complete code)" in note


def test_an_empty_item_is_omitted_without_a_note(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.ProcedureCodeSequence = [code("meaning"), pydicom.Dataset()]

    CT.write(tmp_path / "in", edit)
    [item] = derived(tmp_path / "in", tmp_path / "out")[0].ProcedureCodeSequence
    assert item.CodeMeaning == "meaning"
    assert notes_of_result(read_in(tmp_path / "in"), tmp_path / "out") == ()


def test_an_unparsable_element_of_an_item_is_noted_if_it_is_a_standard_one(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        item = code("meaning")
        item.PatientWeight = "123.25"
        item.private_block(0x9, "MAKER", create=True).add_new(1, "DS", "123.25")
        data.ProcedureCodeSequence = [item]

    for path in CT.write(tmp_path / "in", edit):
        path.write_bytes(path.read_bytes().replace(b"123.25", b"heavy "))
    [item] = derived(tmp_path / "in", tmp_path / "out")[0].ProcedureCodeSequence
    assert (item.CodeMeaning, "PatientWeight" in item) == ("meaning", False)
    assert notes_of_result(read_in(tmp_path / "in"), tmp_path / "out") == (
        "its header violates the DICOM standard; changed in the result: "
        "PatientWeight (omitted, not parsable)",
    )


def test_two_results_of_a_source_without_frame_of_reference_share_one(tmp_path: Path) -> None:
    CT.write(tmp_path / "in", lambda data, _: delattr(data, "FrameOfReferenceUID"))
    one = derived(tmp_path / "in", tmp_path / "a")
    other = derived(tmp_path / "in", tmp_path / "b", replace(DERIVATION, fingerprint="1" * 64))
    assert len({data.FrameOfReferenceUID for data in (*one, *other)}) == 1
    assert one[0].SOPInstanceUID != other[0].SOPInstanceUID


@pytest.mark.parametrize(
    ("part", "side", "expected"),
    [
        ("HEAD", "", None),
        ("KNEE", "", ""),
        ("KNEE", "L", "L"),
        (None, None, ""),
        ("BRAIN", "R", None),
    ],
)
def test_laterality_stands_where_a_body_part_may_have_sides(
    tmp_path: Path, part: str | None, side: str | None, expected: str | None
) -> None:
    def edit(data: Any, _: int) -> None:
        for keyword, value in (("BodyPartExamined", part), ("Laterality", side)):
            data.pop(keyword, None)
            if value is not None:
                setattr(data, keyword, value)

    CT.write(tmp_path / "in", edit)
    assert derived(tmp_path / "in", tmp_path / "out")[0].get("Laterality") == expected


def test_a_whole_trial_is_kept(tmp_path: Path) -> None:
    def edit(data: Any, _: int) -> None:
        data.ClinicalTrialSponsorName, data.ClinicalTrialProtocolID = "Sponsor", "P1"
        data.ClinicalTrialSubjectID = "S1"

    CT.write(tmp_path / "in", edit)
    made = derived(tmp_path / "in", tmp_path / "out")[0]
    assert (made.ClinicalTrialSponsorName, made.ClinicalTrialSubjectID) == ("Sponsor", "S1")


def test_a_quadruped_stays_one(tmp_path: Path) -> None:
    """The axes of its images would otherwise mean other sides of it."""
    CT.write(
        tmp_path / "in", lambda data, _: setattr(data, "AnatomicalOrientationType", "QUADRUPED")
    )
    write(read_in(tmp_path / "in"), tmp_path / "out", DERIVATION)
    made = pydicom.dcmread(tmp_path / "out" / "0001.dcm")
    assert made.AnatomicalOrientationType == "QUADRUPED"


@pytest.mark.parametrize("stated", ["YES", "NO", None])
def test_burned_in_annotation_is_carried_over(tmp_path: Path, stated: str | None) -> None:
    def edit(data: Any, at: int) -> None:
        if stated and (at == 2 or stated == "NO"):  # one slice of many is enough to say so
            data.BurnedInAnnotation = stated

    CT.write(tmp_path / "in", edit)
    made = derived(tmp_path / "in", tmp_path / "out")
    assert {data.get("BurnedInAnnotation") for data in made} == {stated}


@pytest.mark.parametrize("stated", ["YES", "NO", None])
def test_an_enhanced_object_is_made_where_nothing_is_burned_in(
    tmp_path: Path, stated: str | None
) -> None:
    """An enhanced one can say nothing else (PS3.3 C.8.13.1)."""
    write_enhanced(MR, tmp_path / "in" / "one")
    source = pydicom.dcmread(tmp_path / "in" / "one")
    source.BurnedInAnnotation = stated
    source.save_as(tmp_path / "in" / "one")
    made = derived(tmp_path / "in", tmp_path / "out", TO_MR)
    assert {data.get("BurnedInAnnotation") for data in made} == {stated}
    assert len(made) == (1 if stated == "NO" else 4)


@pytest.mark.parametrize("missing", ["ContentTime", "ApplicableSafetyStandardAgency"])
def test_mandatory_statement_of_an_enhanced_object_is_not_invented(
    tmp_path: Path, missing: str
) -> None:
    write_enhanced(MR, tmp_path / "in" / "one")
    source = pydicom.dcmread(tmp_path / "in" / "one")
    source.pop(missing)
    source.save_as(tmp_path / "in" / "one")
    made = derived(tmp_path / "in", tmp_path / "out", TO_MR)
    assert [data.SOPClassUID for data in made] == [pydicom.uid.MRImageStorage] * 4


RATIOS, METHODS = ["12.5", "3"], ["ISO_10918_1", "ISO_15444_1"]


@pytest.mark.parametrize("enhanced", [True, False])
def test_every_step_of_lossy_compression_is_carried_over(tmp_path: Path, enhanced: bool) -> None:
    if enhanced:
        write_enhanced(MR, tmp_path / "in" / "one")
    else:
        MR.write(tmp_path / "in")
    path = sorted((tmp_path / "in").iterdir())[-1]
    source = pydicom.dcmread(path)
    source.LossyImageCompression = "01"
    source.LossyImageCompressionRatio, source.LossyImageCompressionMethod = RATIOS, METHODS
    source.save_as(path)
    made = derived(tmp_path / "in", tmp_path / "out", TO_MR)
    assert len(made) == (1 if enhanced else 4)
    for data in made:
        assert data.LossyImageCompression == "01"
        assert [float(ratio) for ratio in data.LossyImageCompressionRatio] == [12.5, 3.0]
        assert list(data.LossyImageCompressionMethod) == METHODS


@pytest.mark.parametrize("stated", [True, False])
def test_packing_of_a_file_shows_losses_too(tmp_path: Path, stated: bool) -> None:
    """Many a writer packs with losses and says nothing of it."""
    (tmp_path / "in").mkdir()
    expected = 0.0
    unsigned = CT.write(tmp_path / "plain", lambda data, _: setattr(data, "PixelRepresentation", 0))
    for path in unsigned:
        packed = tmp_path / "in" / path.name
        subprocess.run([judge("dcmcjpls"), "--encode-nearlossless", path, packed], check=True)
        data = pydicom.dcmread(packed)
        expected = data.LossyImageCompressionRatio
        if not stated:
            for keyword in data.dir("LossyImage"):
                delattr(data, keyword)
            data.save_as(packed)
    made = derived(tmp_path / "in", tmp_path / "out")[-1]
    assert made.LossyImageCompression == "01"
    assert made.LossyImageCompressionMethod == "ISO_14495_1"
    assert made.LossyImageCompressionRatio == pytest.approx(expected, rel=0.2)


@pytest.mark.parametrize("target", ["MR", "CT"])
def test_an_enhanced_source_that_hides_its_losses_is_no_enhanced_result(
    tmp_path: Path, target: str
) -> None:
    write_enhanced(MR, tmp_path / "in" / "one")
    source = pydicom.dcmread(tmp_path / "in" / "one")
    source.LossyImageCompression = "01"
    source.save_as(tmp_path / "in" / "one")
    made = derived(tmp_path / "in", tmp_path / "out", replace(TO_MR, target=target))
    assert len(made) == 4
    assert {data.LossyImageCompression for data in made} == {"01"}


TEXTS = (
    *("PatientName", "PatientSex", "PatientAge", "PatientBirthDate", "StudyTime", "StudyID"),
    *("AccessionNumber", "StudyDescription", "BodyPartExamined", "TimezoneOffsetFromUTC"),
    *("DeidentificationMethod", "StationName", "ClinicalTrialSubjectID"),
)
words = st.text("0123456789.:YMDW aZ_^=/\n\t\0\u00e9\u592a\u3000", max_size=90)
any_text = words | st.lists(words, min_size=1, max_size=3)


@given(st.dictionaries(st.sampled_from(TEXTS), any_text), st.floats(width=64))
@example({}, 1.7976931345e308)
def test_sanitized_header_needs_no_more(values: dict[str, Any], weight: float) -> None:
    source = pydicom.Dataset()
    for keyword, value in values.items():
        put(source, keyword, value)
    put(source, "PatientWeight", repr(weight))
    keywords = (*TEXTS, "PatientWeight")
    once = kept(source, keywords)
    assert sanitized_elements(once, keywords)[1] == {}
    assert kept(once, keywords) == once
