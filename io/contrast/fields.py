"""Reading of fields of a header: those of a JSON sidecar, or of a DICOM series."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from .statement import Statement, Weight
from .texts import read_text
from .words import ScanKind

_SIGNAL = {"P": "phase", "R": "real part", "I": "imaginary part", "REAL": "real part"}
"""Values of the image type for parts of the complex signal that are no magnitude."""
_MAGNITUDE = ("M", "MAGNITUDE")
_FEWEST_T2_ECHO, _MOST_T1_ECHO, _MOST_PD_ECHO = 40.0, 40.0, 60.0
_FEWEST_FLAIR_INVERSION = 1500.0
_MOST_T1_REPETITION, _FEWEST_T2_REPETITION = 4000.0, 1000.0
"""Limits in milliseconds, wide enough for all field strengths and sequences in use."""


@dataclass(frozen=True, slots=True)
class HeaderFields:
    """Fields about the contrast, of DICOM or of a sidecar.

    by: their source, in words. modality: such as MR. image_type: its values from the third on.
    texts: SeriesDescription and ProtocolName, never shown. echo, repetition, inversion: times in
    milliseconds; 0 if they are not given. has_agent: whether a contrast agent is named.
    """

    by: str
    modality: str = ""
    image_type: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    echo: float = 0.0
    repetition: float = 0.0
    inversion: float = 0.0
    has_agent: bool = False

    @classmethod
    def of_sidecar(cls, fields: Mapping[str, Any]) -> "HeaderFields":
        """Return the fields of a JSON file, whose times are in seconds."""
        types = [*_texts(fields.get("ImageType")), *_texts(fields.get("ImageTypeText"))]
        return cls(
            "its JSON sidecar",
            modality=_text(fields.get("Modality")),
            image_type=tuple(each for each in types if each not in ("ORIGINAL", "PRIMARY")),
            texts=(_text(fields.get("SeriesDescription")), _text(fields.get("ProtocolName"))),
            echo=_milliseconds(fields.get("EchoTime")),
            repetition=_milliseconds(fields.get("RepetitionTime")),
            inversion=_milliseconds(fields.get("InversionTime")),
            has_agent=bool(_text(fields.get("ContrastBolusIngredient"))),
        )

    def statements(self) -> Iterator[Statement]:
        """Yield what the fields state about the image."""
        yield from _of_modality(self.modality, self.by)
        for value in self.image_type:
            yield from _of_image_type(value, self.by)
        yield from next(filter(None, (_of_text(text, self.by) for text in self.texts)), ())

    def objections(self, kinds: frozenset[ScanKind]) -> Iterator[str]:
        """Yield what speaks against these kinds without naming another one.

        kinds: those that a model takes; only a single contrast of MR has such limits.
        """
        [kind] = kinds if len(kinds) == 1 else [""]
        echo, repetition, inversion = self.echo, self.repetition, self.inversion
        if kind == "T1" and self.has_agent:
            yield f"{self.by} names a contrast agent"
        against = {
            "EchoTime": (
                echo,
                (kind in ("T1", "T1ce") and echo > _MOST_T1_ECHO)
                or (kind in ("T2", "FLAIR") and 0 < echo < _FEWEST_T2_ECHO)
                or (kind == "PD" and echo > _MOST_PD_ECHO),
            ),
            "RepetitionTime": (
                repetition,
                (kind in ("T1", "T1ce") and not inversion and repetition > _MOST_T1_REPETITION)
                or (kind == "T2" and 0 < repetition < _FEWEST_T2_REPETITION),
            ),
            "InversionTime": (
                inversion,
                (kind == "T2" and inversion > 0)
                or (kind == "FLAIR" and 0 < inversion < _FEWEST_FLAIR_INVERSION),
            ),
        }
        for field, (value, is_against) in against.items():
            if is_against:
                yield f"{self.by} states {field} {value:.4g} ms"


@lru_cache(1024)
def _of_modality(modality: str, by: str) -> tuple[Statement, ...]:
    kind = _MODALITIES.get(modality.upper())
    if kind is None:
        return ()
    kinds = frozenset({kind})
    stated = Statement(kinds, by, "Modality", Weight.STANDARD, is_coarse=True, is_of_field=True)
    return (stated,)


@lru_cache(1024)
def _of_image_type(value: str, by: str) -> tuple[Statement, ...]:
    if value.upper() in _MAGNITUDE:
        return ()
    if kind := _SIGNAL.get(value.upper()):
        found = [Statement(frozenset({kind}), by, "", mark="derived")]
    else:
        found = read_text(value.replace("_", " "), by, is_description=True)
    # Makers put the weighting there that a protocol was set to, such as T1 for field maps.
    return tuple(
        replace(
            each,
            text="ImageType",
            weight=Weight.STANDARD if each.mark else Weight.WORDS,
            is_of_field=True,
        )
        for each in found
        if each.mark or not (each.is_open or each.is_coarse)
    )


@lru_cache(1024)
def _of_text(text: str, by: str) -> tuple[Statement, ...]:
    found = read_text(text, by, is_description=True)
    return tuple(replace(each, text="description", is_of_field=True) for each in found)


_MODALITIES: dict[str, ScanKind] = {
    "MR": "MR",
    "CT": "CT",
    "PT": "PET",
    "PET": "PET",
    "NM": "SPECT",
    "US": "ultrasound",
}
"""Kind of image by the DICOM Modality."""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> Sequence[str]:
    if isinstance(value, str):
        return [value]
    values = cast("list[object]", value) if isinstance(value, list) else []
    return [each for each in values if isinstance(each, str)]


def _milliseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return 1000.0 * value
