"""Rejection notes of IHE's Imaging Object Change Management (RAD TF-3, 4.66): key objects that are
"Rejected for Quality Reasons", as a Key Object Selection Document (PS3.3, A.35.4).
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydicom.uid import ExplicitVRLittleEndian, KeyObjectSelectionDocumentStorage

from ...errors import UnreadableScanError
from ...files.regular import open_regular
from ...volume import PROGRAM
from ..dataset import PARSING_ERRORS, DataSet, pydicom, word
from .elements import PATIENT, STUDY, TEXT, coded, uid_of
from .sanitizing import kept

_NAMED = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
_SOURCES = ("SourceImageSequence", "SourceImageEvidenceSequence")
_REFERENCED = "ReferencedSOPInstanceUID"


@contextmanager
def _readable() -> Generator[None]:
    try:
        yield
    except (OSError, *PARSING_ERRORS):
        raise UnreadableScanError("an object of it is damaged") from None


@_readable()
def sources_of(files: Iterable[Path]) -> frozenset[str]:
    """Return the UIDs of the images that a result is made of, as its objects state them.

    Raises UnreadableScanError if an object cannot be read.
    """
    found = set[str]()
    for header in _headers(files, _SOURCES):
        for item in header.get("SourceImageSequence", ()):
            found.add(word(item, _REFERENCED))
        for study in header.get("SourceImageEvidenceSequence", ()):
            for series in study.ReferencedSeriesSequence:
                found.update(word(item, _REFERENCED) for item in series.ReferencedSOPSequence)
    return frozenset(found)


@_readable()
def rejection_note(rejected: Iterable[Path], why: str) -> DataSet:
    """Return a note on objects, all of one study; for the same objects, it has the same UIDs.

    why: for readers. Raises UnreadableScanError if an object cannot be read.
    """
    headers = _headers(rejected, (*TEXT, *PATIENT, *STUDY, *_NAMED))
    first = headers[0]
    note = kept(first, [*TEXT, *PATIENT, *STUDY])
    note.file_meta = pydicom.dataset.FileMetaDataset()
    note.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    note.SOPClassUID = KeyObjectSelectionDocumentStorage
    instances = sorted(word(header, "SOPInstanceUID") for header in headers)
    note.SOPInstanceUID = uid_of("rejection note", *instances)
    note.SeriesInstanceUID = uid_of("series of a rejection note", *instances)
    note.Modality, note.SeriesNumber, note.InstanceNumber = "KO", 1, 1
    note.SeriesDescription = "Rejected for Quality Reasons"
    note.ReferencedPerformedProcedureStepSequence = []
    now = datetime.now()
    note.ContentDate, note.ContentTime = f"{now:%Y%m%d}", f"{now:%H%M%S}"
    note.Manufacturer = note.ManufacturerModelName = PROGRAM
    note.CurrentRequestedProcedureEvidenceSequence = [_evidence(headers)]
    note.ValueType, note.ContinuityOfContent = "CONTAINER", "SEPARATE"
    note.ConceptNameCodeSequence = [coded("113001", "DCM", "Rejected for Quality Reasons")]
    template = pydicom.Dataset()
    template.MappingResource, template.TemplateIdentifier = "DCMR", "2010"
    note.ContentTemplateSequence = [template]
    note.ContentSequence = [_modifier(), _text(why), *map(_image, headers)]
    return note


def _headers(files: Iterable[Path], names: Sequence[str]) -> list[DataSet]:
    found = list[DataSet]()
    for file in files:
        with open_regular(file) as stream:
            found.append(
                pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=list(names))
            )
    return found


def _evidence(headers: Sequence[DataSet]) -> DataSet:
    """Return the objects by series."""
    study = pydicom.Dataset()
    study.StudyInstanceUID = word(headers[0], "StudyInstanceUID")
    by_series: dict[str, DataSet] = {}
    for header in headers:
        uid = word(header, "SeriesInstanceUID")
        if uid not in by_series:
            by_series[uid] = pydicom.Dataset()
            by_series[uid].SeriesInstanceUID = uid
            by_series[uid].ReferencedSOPSequence = []
        by_series[uid].ReferencedSOPSequence.append(_reference(header))
    study.ReferencedSeriesSequence = list(by_series.values())
    return study


def _modifier() -> DataSet:
    """Return the reason that TID 2010 requires with this title, of CID 7011."""
    item = pydicom.Dataset()
    item.RelationshipType, item.ValueType = "HAS CONCEPT MOD", "CODE"
    item.ConceptNameCodeSequence = [coded("113011", "DCM", "Document Title Modifier")]
    item.ConceptCodeSequence = [coded("111220", "DCM", "Other failure")]
    return item


def _text(why: str) -> DataSet:
    item = pydicom.Dataset()
    item.RelationshipType, item.ValueType = "CONTAINS", "TEXT"
    item.ConceptNameCodeSequence = [coded("113012", "DCM", "Key Object Description")]
    item.TextValue = why
    return item


def _image(header: DataSet) -> DataSet:
    item = pydicom.Dataset()
    item.RelationshipType, item.ValueType = "CONTAINS", "IMAGE"
    item.ReferencedSOPSequence = [_reference(header)]
    return item


def _reference(header: DataSet) -> DataSet:
    item = pydicom.Dataset()
    item.ReferencedSOPClassUID = word(header, "SOPClassUID")
    item.ReferencedSOPInstanceUID = word(header, "SOPInstanceUID")
    return item
