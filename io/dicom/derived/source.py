"""What a derived series has of its source, and what about it had to be changed."""

import uuid
from collections.abc import Sequence
from hashlib import sha256

from ..instance import DataSet, word, words
from ..library import pydicom
from ..pixels.reading import DicomHeader
from .mending import kept, mended_elements, told
from .modules import (
    ACQUIRED,
    EQUIPMENT,
    FRAME_OF_REFERENCE,
    PATIENT,
    PLANE,
    SERIES,
    STUDY,
    TEXT,
)

_OF_SERIES = (*TEXT, *PATIENT, *STUDY, *SERIES, *FRAME_OF_REFERENCE)
_OF_SLICE = (*ACQUIRED, *PLANE)
_ALWAYS_THERE = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime"),
    *("ReferringPhysicianName", "StudyID", "AccessionNumber", "PositionReferenceIndicator"),
    "PatientPosition",
)
_UNPAIRED = (
    *("HEAD", "BRAIN", "SKULL", "NECK", "HEADNECK", "CHEST", "THORAX", "HEART", "LIVER"),
    *("STOMACH", "SPLEEN", "PANCREAS", "ABDOMEN", "PELVIS", "PROSTATE", "UTERUS", "BLADDER"),
    *("AORTA", "SPINE", "CSPINE", "TSPINE", "LSPINE", "SSPINE", "CTSPINE", "TLSPINE", "LSSPINE"),
    *("COCCYX", "SACRUM", "STERNUM", "WHOLEBODY", "NECKCHEST", "CHESTABDOMEN"),
    *("ABDOMENPELVIS", "CHESTABDPELVIS", "NECKCHESTABDOMEN", "NECKCHESTABDPELV"),
)
"""Body parts that have no left and right (PS3.16 annex L)."""
_TRIAL_NEEDS = ("ClinicalTrialSponsorName", "ClinicalTrialProtocolID")
_TRIAL_HAS = ("ClinicalTrialProtocolName", "ClinicalTrialSiteID", "ClinicalTrialSiteName")
_TRIAL_SUBJECT = ("ClinicalTrialSubjectID", "ClinicalTrialSubjectReadingID")


def source_elements(header: DicomHeader) -> tuple[DataSet, dict[str, str]]:
    """Elements of patient, study, series and frame of reference, as a result has them.

    With them comes what was changed about those of the source, by keyword.
    """
    source = header.headers[0]
    elements, changed = mended_elements(source, _OF_SERIES)
    for keyword in _ALWAYS_THERE:
        if keyword not in elements:
            setattr(elements, keyword, None)
    changed |= _frame_of_reference(elements, header)
    changed |= _laterality(elements)
    changed |= _deidentification(elements)
    changed |= _clinical_trial(elements)
    return elements, changed


def mending_notes(header: DicomHeader) -> tuple[str, ...]:
    """What a derived series changes about elements of its source, in a note; or none."""
    _, changed = source_elements(header)
    changed |= mended_elements(header.headers[0], EQUIPMENT)[1]
    for source in header.headers[:1] if header.enhanced else header.headers:
        changed |= mended_elements(source, _OF_SLICE)[1]
    return told(changed)


def losses(headers: Sequence[DataSet]) -> DataSet:
    """What any slice says about burned-in annotation and lossy compression.

    A generator spreads what it sees over the neighbours, so all are said to have what one has.
    What was lost stays lost (PS3.3 C.7.6.1.1.5), step by step.
    """
    elements = pydicom.Dataset()
    burned_in = {word(header, "BurnedInAnnotation").upper() for header in headers}
    if "YES" in burned_in or burned_in == {"NO"}:
        elements.BurnedInAnnotation = "YES" if "YES" in burned_in else "NO"
    lossy = [header for header in headers if word(header, "LossyImageCompression") == "01"]
    if lossy:
        elements.LossyImageCompression = "01"
        steps = ("LossyImageCompressionRatio", "LossyImageCompressionMethod")
        most = max(lossy, key=lambda header: len(words(header, steps[0])))
        elements.update(kept(most, [step for step in steps if word(most, step)]))
    return elements


def made_uid(*parts: str) -> str:
    """A UID of what it is made from, as 2.25 and a UUID (PS3.5 B.2)."""
    digest = sha256("\0".join(parts).encode(errors="surrogateescape")).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def _frame_of_reference(elements: DataSet, header: DicomHeader) -> dict[str, str]:
    """Images without one share none with another series, but all of them with each other."""
    if word(elements, "FrameOfReferenceUID"):
        return {}
    elements.FrameOfReferenceUID = made_uid("frame of reference", header.series.uid)
    return {"FrameOfReferenceUID": "made new, as there is none"}


def _laterality(elements: DataSet) -> dict[str, str]:
    """Laterality stands with all body parts but unpaired ones (PS3.3 C.7.3.1)."""
    side = word(elements, "Laterality")
    if word(elements, "BodyPartExamined") in _UNPAIRED:
        if "Laterality" in elements:
            del elements.Laterality
        return {"Laterality": "left out, as the body part has no sides"} if side else {}
    if not side and not word(elements, "ImageLaterality"):
        elements.Laterality = None
    return {}


def _deidentification(elements: DataSet) -> dict[str, str]:
    if word(elements, "PatientIdentityRemoved") != "YES":
        return {}
    if word(elements, "DeidentificationMethod") or "DeidentificationMethodCodeSequence" in elements:
        return {}
    elements.DeidentificationMethod = "unknown"
    return {"DeidentificationMethod": "unknown, as none is told"}


def _clinical_trial(elements: DataSet) -> dict[str, str]:
    """A trial is told whole or not at all (PS3.3 C.7.1.3)."""
    told_of = [keyword for keyword in elements.dir("ClinicalTrial") if "TimePoint" not in keyword]
    if not told_of:
        return {}
    subject = any(word(elements, keyword) for keyword in _TRIAL_SUBJECT)
    if subject and all(word(elements, keyword) for keyword in _TRIAL_NEEDS):
        for keyword in _TRIAL_HAS:
            if keyword not in elements:
                setattr(elements, keyword, None)
        for keyword in _TRIAL_SUBJECT:
            if keyword in elements and not word(elements, keyword):
                delattr(elements, keyword)
        return {}
    values = [keyword for keyword in told_of if word(elements, keyword)]
    for keyword in told_of:
        delattr(elements, keyword)
    return dict.fromkeys(values, "left out, as the trial is not told whole")
