"""Elements of a derived image, module by module as in DICOM PS3.3: what stays and what is new.

Only what describes the patient, the study and the place in the room is taken from the source; how
the source was acquired says nothing about a synthetic image, so none of that goes along.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any

from ...volume import NOTICE, Derivation
from ..instance import DataSet, word, words
from ..kinds import MADE_BY
from ..library import PARSING_ERRORS, pydicom
from ..stored_text import as_stored
from .mending import kept

LONGEST_DESCRIPTION = 64

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
"""Odd groups up to here are nobody's own (PS3.5 7.8.1)."""
EQUIPMENT = (
    *("Manufacturer", "InstitutionName", "StationName", "ManufacturerModelName"),
    *("DeviceSerialNumber", "SoftwareVersions"),
)


def private_elements(source: DataSet) -> DataSet:
    """A new data set of the private elements that can be understood, with their creators."""
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
    """Its words in characters that every character set has and no value is split at."""
    return replace(
        derivation,
        model=_plain(derivation.model),
        source=_plain(derivation.source),
        target=_plain(derivation.target),
        incomplete=_plain(derivation.incomplete),
    )


def _plain(text: str) -> str:
    printable = text.encode("ascii", "replace").decode().replace("\\", "/")
    return "".join(char if char.isprintable() else " " for char in printable)


def series_text(derivation: Derivation) -> str:
    """SeriesDescription of a result: what it is, made by which model, and what it is not for."""
    if derivation.shows:
        text = f"Map: {derivation.shows.words}, not for diagnosis; synthetic {derivation.target}"
        return text[:LONGEST_DESCRIPTION]
    text = f"Synthetic {derivation.target} ({derivation.model}), not for diagnosis"
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    room = LONGEST_DESCRIPTION - (len(text) - len(derivation.model)) - 3
    return text.replace(derivation.model, f"{derivation.model[: max(room, 0)]}...")


def series_moment(derivation: Derivation, offset: str) -> DataSet:
    """When the newest of its sources was stored: of two results of a study that was corrected
    between them, this tells the newer one, as number and description cannot.

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
    """How the image came about, and that it is synthetic.

    sources: a slice of each scan that it is made of. uneven: why it was resampled, if so.
    """
    made = pydicom.Dataset()
    made.SyntheticData = "YES"
    made.DerivationDescription = (
        f"{NOTICE} {derivation.source} to {derivation.target} with the model {derivation.model} "
        f"by {MADE_BY} {derivation.program}."
    )
    if derivation.shows:
        made.DerivationDescription += f" A map, not an image: {derivation.shows.words}."
    if uneven:
        made.DerivationDescription += f" Resampled onto an even grid, because {uneven}."
    made.ImageComments = NOTICE
    if derivation.incomplete:
        warning = f" {derivation.incomplete[0].upper()}{derivation.incomplete[1:]}."
        made.DerivationDescription += warning
        made.ImageComments += warning
    made.DerivationCodeSequence = derivation_codes(uneven)
    scanners = list[DataSet]()
    for source in sources:
        scanner = _scanner(source)
        if words(source, "SpecificCharacterSet") != words(sources[0], "SpecificCharacterSet"):
            scanner.update(_character_set(source))
        if scanner not in scanners:
            scanners.append(scanner)
    made.ContributingEquipmentSequence = [*scanners, _synthesizer(derivation)]
    return made


def derivation_codes(uneven: str | None) -> list[DataSet]:
    """What was done, as codes; uneven: why the source was resampled, if so."""
    # CID 7203 has no code for synthesis; the 99 marks a coding scheme of one's own.
    synthesis = ("IMGSYNTH", "99CUDACYCLEGAN", "Image synthesis by a generative neural network")
    resampling = [_codes().CID7203.SpatialResampling[:3]] if uneven else []
    return [coded(*code) for code in (synthesis, *resampling)]


def equipment_elements(source: DataSet, derivation: Derivation) -> DataSet:
    """This program as the maker of the object."""
    made = kept(source, ["InstitutionName"])
    made.Manufacturer = MADE_BY
    made.ManufacturerModelName = MADE_BY
    made.SoftwareVersions = derivation.program
    return made


def source_purpose() -> DataSet:
    """Why a result refers to an image: it is made of it."""
    return coded(*_codes().CID7202.SourceImageForImageProcessingOperation[:3])


def coded(value: str, scheme: str, meaning: str) -> DataSet:
    """An item of a code sequence."""
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
    """In which text of a source is, for an item of an object that has another one."""
    declared = kept(source, ["SpecificCharacterSet"])
    if (
        not word(declared, "SpecificCharacterSet")
        and len(words(source, "SpecificCharacterSet")) < 2
    ):
        declared.SpecificCharacterSet = "ISO_IR 6"
    return declared


def _synthesizer(derivation: Derivation) -> DataSet:
    item = pydicom.Dataset()
    item.Manufacturer = MADE_BY
    item.ManufacturerModelName = derivation.model[:LONGEST_DESCRIPTION]
    item.SoftwareVersions = derivation.program
    item.ContributionDescription = NOTICE
    item.PurposeOfReferenceCodeSequence = [coded(*_codes().CID7005.SynthesizingEquipment[:3])]
    return item
