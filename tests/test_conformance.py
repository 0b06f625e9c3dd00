"""docs/conformance.md: its tables are the program's, and what they say holds on an association."""

import re
from pathlib import Path
from typing import Any

import pydicom as _pydicom
import pynetdicom as _pynetdicom
import pytest
from pydicom.datadict import dictionary_VM, dictionary_VR
from pydicom.uid import AllTransferSyntaxes
from support.conformance import COPIED, PAGE, TABLES, on_page, table
from support.dicom_network import LIMITS, listening
from support.dicom_phantoms import STORED, Phantom
from support.waiting import ENOUGH

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.derived import elements
from cuda_cyclegan.io.dicom_network.commands import DimseStatus
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write

pydicom: Any = _pydicom
pynetdicom: Any = _pynetdicom
TEXT = PAGE.read_text("utf-8")
_CONTEXTS = 128
"""Most contexts of an association."""


def rows(name: str) -> list[list[str]]:
    """The cells of a table of the page, without its head."""
    lines = on_page(TEXT)[name].splitlines()[2:]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "generated")) for name in TABLES],
)
def test_a_table_is_that_of_the_program(name: str) -> None:
    assert on_page(TEXT)[name] == table(name), "run PYTHONPATH=tests python -m support.conformance"


def test_the_page_has_no_other_tables_between_marks() -> None:
    assert [*on_page(TEXT)] == [*TABLES]


def accepted(port: int, offers: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs of class and transfer syntax that a listener accepts, each offered by itself."""
    found = set[tuple[str, str]]()
    for start in range(0, len(offers), _CONTEXTS):
        contexts = [
            pynetdicom.build_context(sop_class, [syntax])
            for sop_class, syntax in offers[start : start + _CONTEXTS]
        ]
        entity = pynetdicom.AE("SENDER")
        entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = ENOUGH
        association = entity.associate("127.0.0.1", port, contexts=contexts, ae_title="NODE")
        for context in association.accepted_contexts:
            found.add((str(context.abstract_syntax), str(context.transfer_syntax[0])))
        if association.is_established:
            association.release()
    return found


def test_the_node_accepts_the_classes_and_syntaxes_of_the_tables_and_no_others(
    tmp_path: Path,
) -> None:
    known = {
        str(context.abstract_syntax)
        for name in dir(pynetdicom)
        if name.endswith("PresentationContexts") and isinstance(getattr(pynetdicom, name), list)
        for context in getattr(pynetdicom, name)
    }
    provided = {uid for _, uid, _, is_provided in rows("classes") if is_provided == "yes"}
    assert len(known) > 150
    assert provided < known
    of_images = {uid for _, uid, accepts, *_ in rows("syntaxes") if accepts == "yes"}
    of_others = {uid for *_, uid, _, accepts, _ in rows("syntaxes") if accepts == "yes"}
    plain = str(pydicom.uid.ImplicitVRLittleEndian)
    offers = [(sop_class, plain) for sop_class in known]
    image, verification = str(pydicom.uid.MRImageStorage), "1.2.840.10008.1.1"
    offers_of = {
        sop_class: [(sop_class, str(syntax)) for syntax in AllTransferSyntaxes]
        for sop_class in (image, verification)
    }
    with listening(tmp_path / "store", LIMITS) as (_, port):
        assert {sop_class for sop_class, _ in accepted(port, offers)} == provided
        assert {syntax for _, syntax in accepted(port, offers_of[image])} == of_images
        assert {syntax for _, syntax in accepted(port, offers_of[verification])} == of_others
    assert len(AllTransferSyntaxes) > len(of_images)


def value_of(keyword: str) -> Any:
    """A valid value for an attribute of a source."""
    special = {
        "SpecificCharacterSet": "ISO_IR 100",
        "PatientSex": "F",
        "ImageLaterality": "L",
        "Laterality": "L",
        "BodyPartExamined": "ARM",
        "TypeOfPatientID": "TEXT",
        "PatientSexNeutered": "ALTERED",
        "AnatomicalOrientationType": "BIPED",
        "LongitudinalTemporalInformationModified": "REMOVED",
        "MRAcquisitionType": "3D",
        "LossyImageCompression": "01",
        "LossyImageCompressionMethod": "ISO_15444_1",
        "TimezoneOffsetFromUTC": "+0100",
        "PatientAge": "050Y",
        "PatientPosition": "HFS",
    }
    code = pydicom.Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "1", "99T", "one"
    by_type = {"SQ": [code], "DA": "20200102", "TM": "101112", "UI": "1.2.3", "DS": "2.5"}
    return special.get(keyword, by_type.get(dictionary_VR(keyword), "YES"))


GIVEN = ("StudyInstanceUID", *elements.FRAME_OF_REFERENCE, *elements.PLANE)
"""Attributes that the phantom has; others would break its geometry."""
REMOVED = ("OperatorsName", "ProtocolName", "ScanningSequence", "DeviceUID", "RequestedProcedureID")


def test_a_result_has_the_attributes_of_the_tables_and_no_others(tmp_path: Path) -> None:
    lists = (elements.PATIENT, elements.STUDY, elements.SERIES, elements.ACQUIRED, elements.PLANE)
    copied = {keyword for each in lists for keyword in each}

    def fill(data: Any, _: int) -> None:
        for keyword in (*COPIED, *REMOVED):
            if keyword not in GIVEN:
                setattr(data, keyword, value_of(keyword))

    Phantom("MR", intercept=0.0).write(tmp_path / "in", edit=fill)
    [study] = discover([tmp_path / "in"], None, Choice()).studies
    write(read(study), tmp_path / "out", Derivation("m", "T1", "T2", "0.2", "f" * 64, STORED))
    result = pydicom.dcmread(min((tmp_path / "out").iterdir()))
    found = {element.keyword for element in result}
    by_table = {cells[0]: cells[3] for cells in rows("generated")}
    on_table = {word for _, words in rows("copied") for word in words.split(", ")}
    assert on_table >= COPIED | set(elements.EQUIPMENT)
    assert found <= COPIED | {name for name, value in by_table.items() if value != "-"}
    assert copied - found <= {"SliceLocation"}  # which the phantom lacks
    for keyword, value in by_table.items():
        is_fixed = value not in ("-", "empty", "computed")
        if is_fixed and not keyword.startswith("Rescale"):  # which a plain line lacks
            assert text_of(result, keyword) == value, keyword


def text_of(result: Any, keyword: str) -> str:
    value = result[keyword].value
    return (
        str(value) if dictionary_VM(keyword) == "1" or isinstance(value, str) else "\\".join(value)
    )


@pytest.mark.parametrize("name", ["association", "objects"])
def test_each_refusal_of_the_sources_is_listed(name: str) -> None:
    """The tables read the sources; this reads them otherwise."""
    source = (PAGE.parents[1] / "io" / "dicom_network" / f"{name}.py").read_text("utf-8")
    statuses = set(re.findall(r"DimseStatus\.([A-Z_]+)", source)) - {"SUCCESS"}
    listed = {cells[0] for cells in rows("responses")}
    assert {f"{DimseStatus[status]:04X}" for status in statuses} <= listed
