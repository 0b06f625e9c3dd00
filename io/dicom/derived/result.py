"""What all objects of a derived series share: identifiers, modality, and elements of the source."""

from dataclasses import dataclass
from typing import get_args

from ...contrasts import Contrasts
from ...maps import MapKind
from ...volume import Derivation, Volume
from ..instance import DataSet, number, word
from ..kinds import OTHER_MODALITY
from ..library import pydicom
from ..pixels.reading import DicomHeader
from ..series import HASH_DIGITS, Series
from .modules import (
    derivation_elements,
    equipment_elements,
    in_plain_text,
    series_moment,
    series_text,
)
from .source import losses, made_uid, source_elements
from .storage import StoredPixels, stored_pixels


@dataclass(frozen=True, slots=True)
class DerivedSeries:
    """A derived series before it becomes files.

    header: of the source. stored: its voxels. derivation: how they were made. modality: that it is
    given.
    """

    header: DicomHeader
    stored: StoredPixels
    derivation: Derivation
    modality: str

    @property
    def series_uid(self) -> str:
        """SeriesInstanceUID of the result."""
        return derived_uid(self.derivation, self.header.series.uid, self.header.series.label)

    @property
    def along(self) -> range:
        """Its slices in the direction of the stack in which the numbers of the source grow."""
        numbers = self._numbers
        return range(len(numbers))[:: -1 if numbers[0] > numbers[-1] else 1]

    @property
    def order(self) -> list[int]:
        """Its slices as the source numbers them; along the stack where it numbers two alike."""
        numbers = self._numbers
        images = {(frame.file, frame.number) for frame in self.header.frames}
        told_apart = len(set(numbers)) == len(images)
        return sorted(self.along, key=numbers.__getitem__) if told_apart else list(self.along)

    @property
    def _numbers(self) -> list[tuple[float, int]]:
        """The source's number of each slice: that of its file, and of its frame in it."""
        sources = zip(self.header.frames, self.header.headers, strict=True)
        return [(number(source, "InstanceNumber"), frame.number) for frame, source in sources]


def result_of(volume: Volume, header: DicomHeader, derivation: Derivation) -> DerivedSeries:
    """The series that a translated volume becomes, of the target's modality where that is known.

    A target that names several, as "CT (from MR)" does, is said to be of none of them. A map is of
    no modality either, so that nobody takes its values for those of a scan.
    """
    target = Contrasts.named_in(derivation.target)
    modality = target.modality or (OTHER_MODALITY if target.modalities else header.series.modality)
    if derivation.shows:
        modality = OTHER_MODALITY
    # Zero may be padding in an MR, and is water in a CT.
    padding = header.padding if modality == header.series.modality else None
    return DerivedSeries(
        header, stored_pixels(volume, padding), in_plain_text(derivation), modality
    )


def shared_elements(result: DerivedSeries) -> DataSet:
    """Patient, study, series, frame of reference, equipment, derivation and kind of pixels."""
    source, series = result.header.headers[0], result.header.series
    dataset, _ = source_elements(result.header)
    dataset.update(losses(result.header.slices))
    dataset.update(equipment_elements(source, result.derivation))
    sources = [scan.headers[0] for scan in result.header.scans]
    dataset.update(derivation_elements(sources, result.derivation, series.uneven))
    dataset.Modality = result.modality
    dataset.SeriesInstanceUID = result.series_uid
    dataset.SeriesNumber = derived_number(series, result.derivation)
    dataset.SeriesDescription = series_text(result.derivation)
    dataset.update(series_moment(result.derivation, word(dataset, "TimezoneOffsetFromUTC")))
    dataset.update(_pixel_elements(result.stored))
    return dataset


def _pixel_elements(stored: StoredPixels) -> DataSet:
    dataset = pydicom.Dataset()
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    _, dataset.Rows, dataset.Columns = stored.pixels.shape
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.PixelRepresentation = int(stored.signed)
    if stored.padding is not None:
        dataset.add_new("PixelPaddingValue", "SS" if stored.signed else "US", stored.padding)
    return dataset


FIRST_DERIVED_NUMBER = 10_000
LARGEST_NUMBER = 2**31 - 1


def derived_uid(derivation: Derivation, *parts: str) -> str:
    """A UID of what made the object and which one it is."""
    return made_uid(derivation.fingerprint, *parts)


def derived_number(series: Series, derivation: Derivation) -> int:
    """A SeriesNumber that says which series it comes from and that no series of its study has.

    Each kind of map and each further channel of a model has numbers of its own.
    """
    kinds, shows = get_args(MapKind), derivation.shows
    further = 1 + len(kinds) + derivation.channel if derivation.channel else 1
    first = FIRST_DERIVED_NUMBER * (2 + kinds.index(shows.kind) if shows else further)
    last = series.label.rpartition("-")[2]
    part = int(last) if len(last) < HASH_DIGITS else 0
    wanted = first + 100 * max(series.number, 0) + part
    if wanted > LARGEST_NUMBER:
        wanted = first
    while wanted in series.study_numbers:
        wanted += 1
    return wanted
