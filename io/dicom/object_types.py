"""Types of DICOM objects, and the reasons why most of them cannot be translated."""

from functools import cache
from typing import Any

from ..volume import PROGRAM
from .dataset import DataSet, number, pydicom, word, words

MAP_TYPE, OTHER_MODALITY = "MAP", "OT"
"""Marks of a map stored next to a result: a value of ImageType, and Modality OT (other)."""

IS_MAP = "it is a map stored with a result"

THROUGH_A_TABLE = "its values are mapped by a lookup table, which is not supported"
NO_IMAGE = "it contains no image"
NO_PLACE = "its images have no position in the patient"

_NOT_IMAGES = {
    "SR": "it is a structured report",
    "PR": "it is a presentation state",
    "KO": "it is a key object selection",
    "SEG": "it is a segmentation",
    "REG": "it is a spatial registration",
    "FID": "it contains fiducials",
    "RTSTRUCT": "it contains radiotherapy contours",
    "RTPLAN": "it is a radiotherapy plan",
    "RTDOSE": "it is a radiotherapy dose",
    "RTRECORD": "it is a radiotherapy record",
    "DOC": "it is a document",
    "ECG": "it is a curve, not an image",
    "HD": "it is a curve, not an image",
    "RWV": "it is a real world value mapping",
}
_DOCUMENTS = {
    "1.2.840.10008.5.1.4.1.1.88.59": _NOT_IMAGES["KO"],
    "1.2.840.10008.5.1.4.1.1.88.": _NOT_IMAGES["SR"],
    "1.2.840.10008.5.1.4.1.1.11.": _NOT_IMAGES["PR"],
    "1.2.840.10008.5.1.4.1.1.104.": _NOT_IMAGES["DOC"],
}
"""Starts of SOPClassUIDs of objects without pixels, whatever their Modality says."""
_NOT_SCANS = {pydicom.uid.ParametricMapStorage: "it is a parametric map"}
_PLANAR = {
    *("CR", "DX", "MG", "RF", "XA", "US", "IVUS", "ES", "XC", "SM", "GM", "OP", "OPT", "IO", "PX")
}
_ENHANCED: dict[str, str] = {
    pydicom.uid.EnhancedCTImageStorage: "CT",
    pydicom.uid.EnhancedMRImageStorage: "MR",
    pydicom.uid.EnhancedPETImageStorage: "PT",
    pydicom.uid.LegacyConvertedEnhancedCTImageStorage: "CT",
    pydicom.uid.LegacyConvertedEnhancedMRImageStorage: "MR",
    pydicom.uid.LegacyConvertedEnhancedPETImageStorage: "PT",
}
SCANS: dict[str, str] = {
    pydicom.uid.CTImageStorage: "CT",
    pydicom.uid.MRImageStorage: "MR",
    pydicom.uid.PositronEmissionTomographyImageStorage: "PT",
    **_ENHANCED,
}
"""Classes of scans that are volumes, and the one modality of each."""

_DIRECTORY = "1.2.840.10008.1.3.10"


def is_enhanced(dataset: DataSet) -> bool:
    """Return whether a class of multi-frame objects describes its frames in functional groups."""
    return is_enhanced_class(word(dataset, "SOPClassUID"))


def is_enhanced_class(sop_class: str) -> bool:
    """Return whether it is a class of multi-frame objects with functional groups."""
    return sop_class in _ENHANCED


def modality_in(dataset: DataSet) -> str:
    """Return the object's Modality, or else that of its class; empty if neither is known."""
    return word(dataset, "Modality") or SCANS.get(word(dataset, "SOPClassUID"), "")


def is_directory(sop_class: str) -> bool:
    """Return whether the file is a DICOMDIR, an index of files that are searched for themselves."""
    return sop_class == _DIRECTORY


def is_result(dataset: DataSet) -> bool:
    """Return whether this program wrote the object."""
    return word(dataset, "Manufacturer") == PROGRAM


def is_map(dataset: DataSet) -> bool:
    """Return whether this program wrote the object as a map of a result."""
    return is_result(dataset) and MAP_TYPE in words(dataset, "ImageType")


def no_image(dataset: DataSet) -> str | None:
    """Return why an object of this kind is no image of a scan; None if it may be one."""
    modality, sop_class = word(dataset, "Modality").upper(), word(dataset, "SOPClassUID")
    by_class = next((why for uid, why in _DOCUMENTS.items() if sop_class.startswith(uid)), None)
    return _NOT_IMAGES.get(modality) or by_class


def blocker(dataset: DataSet) -> str | None:
    """Return why this object cannot be part of a volume; None if it may."""
    if why_not := no_image(dataset):
        return why_not
    modality = word(dataset, "Modality").upper()
    if (sop_class := word(dataset, "SOPClassUID")) in _NOT_SCANS:
        return _NOT_SCANS[sop_class]
    if not (number(dataset, "Rows") > 0 and number(dataset, "Columns") > 0):
        return NO_IMAGE
    if modality in _PLANAR:
        return f"{modality} images are not slices of a volume"
    return _blocker_of_pixels(dataset)


def _blocker_of_pixels(dataset: DataSet) -> str | None:
    image_type = words(dataset, "ImageType")
    if "LOCALIZER" in image_type:
        return "it is a localizer"
    if not {"MOSAIC", "VFRAME"}.isdisjoint(image_type):  # Siemens and UIH
        return (
            "its slices are tiled into a mosaic; export the series as enhanced or single-slice "
            "images"
        )
    if number(dataset, "SamplesPerPixel", 1) != 1:
        return "it is a colour image"
    if word(dataset, "PhotometricInterpretation").upper() == "PALETTE COLOR":
        return "it is a colour image with a palette"
    if number(dataset, "BitsAllocated", 16) == 1:
        return "it contains 1-bit masks"
    if dataset.get("ModalityLUTSequence"):
        return THROUGH_A_TABLE
    return None


@cache
def known_modalities() -> frozenset[str]:
    """Return the codes of Modality in the standard, PS3.16 CID 33, without retired ones."""
    from pydicom.sr import codedict  # late: its tables take 50 ms

    group: Any = codedict.codes.cid33
    return frozenset(getattr(group, name).value for name in group.dir())
