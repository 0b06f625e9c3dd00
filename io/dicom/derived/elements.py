"""Elements of a derived image: those of its source, new ones, and references to its sources."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from hashlib import sha256
from typing import Any

import numpy as np

from ...volume import NOTICE, PROGRAM, Derivation
from ..dataset import PARSING_ERRORS, DataSet, number, pydicom, word, words
from ..frames import Frame
from ..geometry import depth_of, normal_of
from ..pixels.reading import DicomHeader
from ..stored_text import as_stored
from .sanitizing import kept, sanitized_elements, sanitizing_notes

_LONGEST_DESCRIPTION = 64

PATIENT = (
    *("PatientName", "PatientID", "IssuerOfPatientID", "IssuerOfPatientIDQualifiersSequence"),
    *("TypeOfPatientID", "OtherPatientIDsSequence", "PatientBirthDate", "PatientBirthTime"),
    *("PatientSex", "EthnicGroup", "QualityControlSubject", "PatientSpeciesDescription"),
    *("PatientSpeciesCodeSequence", "PatientBreedDescription", "PatientBreedCodeSequence"),
    *("BreedRegistrationSequence", "ResponsiblePerson", "ResponsiblePersonRole"),
    *("ResponsibleOrganization", "PatientIdentityRemoved", "DeidentificationMethod"),
    *("DeidentificationMethodCodeSequence", "ClinicalTrialSponsorName"),
    *("ClinicalTrialProtocolID", "ClinicalTrialProtocolName", "ClinicalTrialSiteID"),
    *("ClinicalTrialSiteName", "ClinicalTrialSubjectID", "ClinicalTrialSubjectReadingID"),
)
STUDY = (
    *("StudyInstanceUID", "StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID"),
    *("AccessionNumber", "IssuerOfAccessionNumberSequence", "StudyDescription"),
    *("ProcedureCodeSequence", "PatientAge", "PatientSize", "PatientWeight"),
    *(
        "PatientSexNeutered",
        "AdmissionID",
        "ClinicalTrialTimePointID",
        "ClinicalTrialTimePointDescription",
    ),
    *("LongitudinalTemporalInformationModified", "TimezoneOffsetFromUTC"),
)
SERIES = (
    *("BodyPartExamined", "AnatomicRegionSequence", "Laterality", "ImageLaterality"),
    *("PatientPosition", "AnatomicalOrientationType"),
)
FRAME_OF_REFERENCE = ("FrameOfReferenceUID", "PositionReferenceIndicator")
TEXT = ("SpecificCharacterSet",)
ACQUIRED = ("AcquisitionDate", "AcquisitionTime", "ContentDate", "ContentTime")
PLANE = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness"),
    "SliceLocation",
)
_LAST_RESERVED_GROUP = 7
"""Odd groups up to here are not private (PS3.5 7.8.1)."""
EQUIPMENT = (
    *("Manufacturer", "InstitutionName", "StationName", "ManufacturerModelName"),
    *("DeviceSerialNumber", "SoftwareVersions"),
)


def private_elements(source: DataSet) -> DataSet:
    """Return a new data set of the private elements that can be understood, with their creators."""
    found = pydicom.Dataset()
    for tag in list(source.keys()):
        if tag.is_private and tag.group > _LAST_RESERVED_GROUP:
            with suppress(*PARSING_ERRORS):
                found[tag] = as_stored(source[tag])
    return found


def drop_private(dataset: DataSet) -> None:
    """Take private elements out of a data set and of its sequences."""
    for tag in list(dataset.keys()):
        try:
            within = dataset[tag].value if dataset[tag].VR == "SQ" else ()
        except PARSING_ERRORS:
            del dataset[tag]  # perhaps a sequence with private elements in it
            continue
        if tag.is_private:
            del dataset[tag]
            continue
        for item in within:
            drop_private(item)


def in_plain_text(derivation: Derivation) -> Derivation:
    """Return its texts in characters that are in every character set and separate no values."""
    return replace(
        derivation,
        model=_plain(derivation.model),
        source=_plain(derivation.source),
        target=_plain(derivation.target),
        incomplete=_plain(derivation.incomplete),
        description=_plain(derivation.description),
    )


def _plain(text: str) -> str:
    printable = text.encode("ascii", "replace").decode().replace("\\", "/")
    return "".join(char if char.isprintable() else " " for char in printable)


def series_text(derivation: Derivation) -> str:
    """Return the SeriesDescription of a result: its kind, the model, and the use that it is not
    meant for, or the text that the user chose; a map is always described by its kind.
    """
    if derivation.shows:
        text = f"Map: {derivation.shows.words}, not for diagnosis; synthetic {derivation.target}"
        return text[:_LONGEST_DESCRIPTION]
    if derivation.description:
        return derivation.description[:_LONGEST_DESCRIPTION]
    text = f"Synthetic {derivation.target} ({derivation.model}), not for diagnosis"
    if len(text) <= _LONGEST_DESCRIPTION:
        return text
    free = _LONGEST_DESCRIPTION - (len(text) - len(derivation.model)) - 3
    return text.replace(derivation.model, f"{derivation.model[: max(free, 0)]}...")


def series_moment(derivation: Derivation, offset: str) -> DataSet:
    """Return the date and time at which the newest of its sources was stored.

    A study may be corrected between two results: this distinguishes the newer one, as number and
    description cannot.

    offset: TimezoneOffsetFromUTC of the result, in which its times are; without one, the machine's.
    """
    moment = pydicom.Dataset()
    with suppress(ValueError, OverflowError, OSError):  # a file may bear any date
        stored = datetime.fromtimestamp(derivation.newest_source, _zone(offset))
        moment.SeriesDate, moment.SeriesTime = f"{stored:%Y%m%d}", f"{stored:%H%M%S}"
    return moment


def _zone(offset: str) -> tzinfo | None:
    try:
        return datetime.strptime(offset, "%z").tzinfo
    except ValueError:
        return None


def derivation_elements(
    sources: Sequence[DataSet], derivation: Derivation, uneven: str | None
) -> DataSet:
    """Return the derivation of the image, marked as synthetic.

    sources: a slice of each source scan. uneven: why it was resampled, if so.
    """
    elements = pydicom.Dataset()
    elements.SyntheticData = "YES"
    elements.DerivationDescription = (
        f"{NOTICE} {derivation.source} to {derivation.target} with the model {derivation.model} "
        f"by {PROGRAM} {derivation.program}."
    )
    if derivation.shows:
        elements.DerivationDescription += f" A map, not an image: {derivation.shows.words}."
    if uneven:
        elements.DerivationDescription += f" Resampled onto an even grid because {uneven}."
    elements.ImageComments = NOTICE
    if derivation.incomplete:
        warning = f" {derivation.incomplete[0].upper()}{derivation.incomplete[1:]}."
        elements.DerivationDescription += warning
        elements.ImageComments += warning
    elements.DerivationCodeSequence = derivation_codes(uneven)
    scanners = list[DataSet]()
    for source in sources:
        scanner = _scanner(source)
        if words(source, "SpecificCharacterSet") != words(sources[0], "SpecificCharacterSet"):
            scanner.update(_character_set(source))
        if scanner not in scanners:
            scanners.append(scanner)
    elements.ContributingEquipmentSequence = [*scanners, _synthesizer(derivation)]
    return elements


def derivation_codes(uneven: str | None) -> list[DataSet]:
    """Return codes of the derivation; uneven: why the source was resampled, if so."""
    # CID 7203 has no code for synthesis; the 99 marks a coding scheme of one's own.
    synthesis = ("IMGSYNTH", "99CUDACYCLEGAN", "Image synthesis by a generative neural network")
    resampling = [_codes().CID7203.SpatialResampling[:3]] if uneven else []
    return [coded(*code) for code in (synthesis, *resampling)]


def equipment_elements(source: DataSet, derivation: Derivation) -> DataSet:
    """Equipment elements that name this program as the manufacturer."""
    elements = kept(source, ["InstitutionName"])
    elements.Manufacturer = PROGRAM
    elements.ManufacturerModelName = PROGRAM
    elements.SoftwareVersions = derivation.program
    return elements


def source_purpose() -> DataSet:
    """Return the code for the purpose of a reference: source image of a derivation."""
    return coded(*_codes().CID7202.SourceImageForImageProcessingOperation[:3])


def coded(value: str, scheme: str, meaning: str) -> DataSet:
    """Return an item of a code sequence."""
    item = pydicom.Dataset()
    item.CodeValue = value
    item.CodingSchemeDesignator = scheme
    item.CodeMeaning = meaning
    return item


def _codes() -> Any:
    """DICOM's own codes; loaded with the first result, as that takes a third of a second."""
    from pydicom.sr.codedict import codes

    return codes


def _scanner(source: DataSet) -> DataSet:
    item = kept(source, EQUIPMENT)
    if not word(item, "Manufacturer"):
        item.Manufacturer = "unknown"
    item.PurposeOfReferenceCodeSequence = [coded(*_codes().CID7005.AcquisitionEquipment[:3])]
    return item


def _character_set(source: DataSet) -> DataSet:
    """Return the character set of a source, for an item of an object that has another one."""
    declared = kept(source, ["SpecificCharacterSet"])
    if (
        not word(declared, "SpecificCharacterSet")
        and len(words(source, "SpecificCharacterSet")) < 2
    ):
        declared.SpecificCharacterSet = "ISO_IR 6"
    return declared


def _synthesizer(derivation: Derivation) -> DataSet:
    item = pydicom.Dataset()
    item.Manufacturer = PROGRAM
    item.ManufacturerModelName = derivation.model[:_LONGEST_DESCRIPTION]
    item.SoftwareVersions = derivation.program
    item.ContributionDescription = NOTICE
    item.PurposeOfReferenceCodeSequence = [coded(*_codes().CID7005.SynthesizingEquipment[:3])]
    return item


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

    Return also the changes to those of the source, by keyword.
    """
    source = header.headers[0]
    elements, changed = sanitized_elements(source, _OF_SERIES)
    for keyword in _ALWAYS_THERE:
        if keyword not in elements:
            setattr(elements, keyword, None)
    changed |= _frame_of_reference(elements, header)
    changed |= _laterality(elements)
    changed |= _deidentification(elements)
    changed |= _clinical_trial(elements)
    return elements, changed


def result_notes(header: DicomHeader) -> tuple[str, ...]:
    """Return a note on what a derived series changes about elements of its source, or none."""
    _, changed = source_elements(header)
    changed |= sanitized_elements(header.headers[0], EQUIPMENT)[1]
    for source in header.headers[:1] if header.enhanced else header.headers:
        changed |= sanitized_elements(source, _OF_SLICE)[1]
    return sanitizing_notes(changed)


def losses(headers: Sequence[DataSet]) -> DataSet:
    """Return what any slice says about burned-in annotation and lossy compression.

    A generator spreads its input over neighbours, so if one slice has either, all are marked.
    Lossy steps are kept (PS3.3 C.7.6.1.1.5), step by step.
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


def uid_of(*parts: str) -> str:
    """Return a UID derived from these parts, as 2.25 and a UUID (PS3.5 B.2)."""
    digest = sha256("\0".join(parts).encode(errors="surrogateescape")).digest()
    return f"2.25.{uuid.UUID(bytes=digest[:16], version=5).int}"


def _frame_of_reference(elements: DataSet, header: DicomHeader) -> dict[str, str]:
    """Add a frame of reference if there is none: all images share it, no other series does."""
    if word(elements, "FrameOfReferenceUID"):
        return {}
    elements.FrameOfReferenceUID = uid_of("frame of reference", header.series.uid)
    return {"FrameOfReferenceUID": "newly generated because the source has none"}


def _laterality(elements: DataSet) -> dict[str, str]:
    """Require Laterality for all body parts but unpaired ones (PS3.3 C.7.3.1)."""
    side = word(elements, "Laterality")
    if word(elements, "BodyPartExamined") in _UNPAIRED:
        if "Laterality" in elements:
            del elements.Laterality
        return {"Laterality": "omitted because the body part has no laterality"} if side else {}
    if not side and not word(elements, "ImageLaterality"):
        elements.Laterality = None
    return {}


def _deidentification(elements: DataSet) -> dict[str, str]:
    if word(elements, "PatientIdentityRemoved") != "YES":
        return {}
    if word(elements, "DeidentificationMethod") or "DeidentificationMethodCodeSequence" in elements:
        return {}
    elements.DeidentificationMethod = "unknown"
    return {"DeidentificationMethod": "set to unknown because the source gives none"}


def _clinical_trial(elements: DataSet) -> dict[str, str]:
    """Return the elements of a trial, all or none (PS3.3 C.7.1.3)."""
    keywords = [keyword for keyword in elements.dir("ClinicalTrial") if "TimePoint" not in keyword]
    if not keywords:
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
    values = [keyword for keyword in keywords if word(elements, keyword)]
    for keyword in keywords:
        delattr(elements, keyword)
    return dict.fromkeys(
        values, "omitted because the source's clinical trial attributes are incomplete"
    )


_BEYOND = 0.999
"""Spacings between slices; one so far from a voxel has no part in its interpolated value."""

_ALIKE_MM = 1e-3


def source_images(header: DicomHeader, at: int) -> list[DataSet]:
    """Items of SourceImageSequence for slice `at` of a result in the grid of the first scan.

    They are the first scan's slice there, and the nearest slices on both sides in each other scan.
    """
    same = "NO" if header.resampled else "YES"
    items = [_item(header, at, same)]
    for scan in header.others:
        for index in _neighbours(scan, header.frames[at]):
            is_there = _is_same_place(scan.frames[index], header.frames[at])
            moved = scan.resampled or not is_there
            items.append(_item(scan, index, "NO" if moved else same))
    return items


def evidence(header: DicomHeader) -> list[DataSet]:
    """All objects of all scans, by study and series: items of SourceImageEvidenceSequence."""
    studies: dict[str, DataSet] = {}
    for scan in header.scans:
        classes = {
            frame.instance: word(dataset, "SOPClassUID")
            for frame, dataset in zip(scan.frames, scan.headers, strict=True)
        }
        series = pydicom.Dataset()
        series.SeriesInstanceUID = scan.series.uid
        series.ReferencedSOPSequence = [_reference(cls, uid) for uid, cls in classes.items()]
        if scan.series.study not in studies:
            study = studies[scan.series.study] = pydicom.Dataset()
            study.StudyInstanceUID = scan.series.study
            study.ReferencedSeriesSequence = []
        studies[scan.series.study].ReferencedSeriesSequence.append(series)
    return list(studies.values())


def _item(scan: DicomHeader, at: int, preserved: str) -> DataSet:
    """Return a reference. preserved: YES or NO: its pixels are at the result's positions."""
    frame, source = scan.frames[at], scan.headers[at]
    item = _reference(word(source, "SOPClassUID"), frame.instance)
    if scan.enhanced or number(source, "NumberOfFrames", 1) > 1:
        item.ReferencedFrameNumber = frame.number + 1
    item.SpatialLocationsPreserved = preserved
    item.PurposeOfReferenceCodeSequence = [source_purpose()]
    return item


def _reference(sop_class: str, instance: str) -> DataSet:
    item = pydicom.Dataset()
    item.ReferencedSOPClassUID = sop_class
    item.ReferencedSOPInstanceUID = instance
    return item


def _neighbours(scan: DicomHeader, frame: Frame) -> Iterator[int]:
    """Yield the slices of a scan used to interpolate a frame: one if the frame is one of them, none
    outside the scan.
    """
    normal = normal_of(scan.frames[0])
    places = np.array([depth_of(each, normal) for each in scan.frames])
    row, column = np.reshape(frame.orientation, (2, 3))
    height, width = (frame.rows - 1) * frame.spacing[0], (frame.columns - 1) * frame.spacing[1]
    start = depth_of(frame, normal)
    along, down = width * float(row @ normal), height * float(column @ normal)
    ends = start, start + along, start + down, start + along + down
    reach = _BEYOND * float(np.abs(np.diff(places)).mean())
    near = (places > min(ends) - reach) & (places < max(ends) + reach)
    yield from map(int, np.flatnonzero(near))


def _is_same_place(one: Frame, other: Frame) -> bool:
    """Return whether the pixels of both lie at the same places."""
    return (one.rows, one.columns) == (other.rows, other.columns) and all(
        np.allclose(ours, theirs, rtol=0, atol=_ALIKE_MM)
        for ours, theirs in (
            (one.position, other.position),
            (one.orientation, other.orientation),
            (one.spacing, other.spacing),
        )
    )
