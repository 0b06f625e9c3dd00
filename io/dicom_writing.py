"""A derived DICOM series in the geometry of its source, as a folder of files."""

from pathlib import Path

from .dicom import DicomHeader
from .dicom_multiframe import fits_multiframe, multiframe_image
from .dicom_result import result_of
from .dicom_single import single_images
from .errors import WriteError
from .volume import Derivation, Volume

FEWEST_DIGITS = 4


def write_series(volume: Volume, folder: Path, derivation: Derivation) -> None:
    """Write a series into an empty folder: one enhanced file for an enhanced source, else one a
    slice. Raises WriteError and OSError.
    """
    header = volume.header
    if not isinstance(header, DicomHeader):
        raise WriteError(f"{folder} was not written: its source was not read as DICOM.")
    result = result_of(volume, header, derivation)
    digits = max(FEWEST_DIGITS, len(str(len(header.frames))))
    if fits_multiframe(result):
        datasets = iter([multiframe_image(result)])
    else:
        datasets = single_images(result)
    for at, dataset in enumerate(datasets, 1):
        dataset.save_as(folder / f"{at:0{digits}}.dcm", enforce_file_format=True)
