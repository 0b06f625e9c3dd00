"""Lossy compression that a file's own encoding tells of, where its header does not."""

from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSNearLossless,
)

from .instance import DataSet, number, word

_ALWAYS_LOSSY = (JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless)
_METHODS = {
    JPEGBaseline8Bit: "ISO_10918_1",
    JPEGExtended12Bit: "ISO_10918_1",
    JPEGLSNearLossless: "ISO_14495_1",
    JPEG2000: "ISO_15444_1",
    HTJ2K: "ISO_15444_15",
}
"""Defined terms of PS3.3 C.7.6.1.1.5.1."""


def tell_losses(dataset: DataSet) -> None:
    """Add to a header, which has its pixels still, how lossy they are packed."""
    syntax = dataset.file_meta.get("TransferSyntaxUID")
    if syntax not in _METHODS:
        return
    if syntax in _ALWAYS_LOSSY:
        dataset.LossyImageCompression = "01"
    if word(dataset, "LossyImageCompression") != "01":
        return
    if not word(dataset, "LossyImageCompressionMethod"):
        dataset.LossyImageCompressionMethod = _METHODS[syntax]
    if not word(dataset, "LossyImageCompressionRatio"):
        dataset.LossyImageCompressionRatio = f"{_ratio(dataset):.4g}"


def _ratio(dataset: DataSet) -> float:
    values = number(dataset, "Rows") * number(dataset, "Columns")
    values *= number(dataset, "NumberOfFrames", 1) * number(dataset, "SamplesPerPixel", 1)
    return max(1.0, values * number(dataset, "BitsAllocated", 16) / 8 / len(dataset.PixelData))
