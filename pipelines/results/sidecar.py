"""JSON sidecar of a result: its program and model, its sources, and valid fields of its scan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.model.model_card import ModelCard
from ...io.sidecars import BidsName, fields_of
from ...io.volume import NOTICE, Study
from ..settings import TranslateOptions
from .bids import bids_uri, generated_by

KEPT: dict[str, str] = {
    "BodyPart": "the result shows the same part of the body",
    "BodyPartExamined": "the result shows the same part of the body",
    "Resolution": "the result has the scan's grid",
    "SkullStripped": "the result shows what the scan shows",
    "SpatialReference": "the result has the scan's grid",
}
"""Fields of a scan's sidecar that hold for its result, with the reason. All others are omitted."""

DROPPED: dict[str, str] = {
    "EchoTime, RepetitionTime, InversionTime, FlipAngle, all else about the acquisition": (
        "the result was not acquired"
    ),
    "Manufacturer, ManufacturersModelName, DeviceSerialNumber, StationName, SoftwareVersions": (
        "no device acquired the result"
    ),
    "Modality, SeriesDescription, ProtocolName, SequenceName, ImageType": (
        "they name the scan's contrast, and free text may identify a patient"
    ),
    "Units, TracerName, InjectedRadioactivity, ContrastBolusIngredient": (
        "they describe the scan's values"
    ),
    "PatientName, PatientID, PatientBirthDate, PatientSex, PatientAge, PatientWeight": (
        "patient data"
    ),
    "AcquisitionTime, AcquisitionDateTime, InstitutionName, InstitutionAddress": (
        "they show when and where a patient was scanned"
    ),
    "any other": "it may not apply to the result",
}
"""Fields that are omitted, with the reason, for readers."""

_LONGEST_TEXT = 200


@dataclass(frozen=True, slots=True)
class SidecarMaker:
    """Maker of the sidecars of a run's results.

    card, model_sha256: model card and hash of the model. is_in_dataset: whether the results are a
    BIDS dataset, which requires more.
    """

    card: ModelCard
    model_sha256: str
    is_in_dataset: bool

    @classmethod
    def of(
        cls, card: ModelCard, model_sha256: str, options: TranslateOptions
    ) -> "SidecarMaker | None":
        """Return the maker of the sidecars that the options request; None if they request none."""
        if not options.has_sidecars:
            return None
        return cls(card, model_sha256, options.layout == "bids")

    def contents(self, study: Study, program: str) -> tuple[bytes, ...]:
        """Return the sidecar of each result of a study; program: version that made the results."""
        sources = [_source(scan) for scan in study.channels]
        inherited = self._inherited(study.channels[0].files[0], sources[0])
        generated = generated_by(self.card.words, self.model_sha256, program)
        texts = (f"{NOTICE} {target} made from {self.card.source}." for target in self.card.targets)
        uneven = dict.fromkeys(scan.uneven for scan in study.channels if scan.uneven)
        remarks = [*(f"Resampled onto an even grid because {why}." for why in uneven)]
        remarks += [study.incomplete] if study.incomplete else []
        fields = (
            {
                "Description": " ".join([text, *remarks]),
                "GeneratedBy": [generated],
                "Sources": sources,
                **inherited,
            }
            for text in texts
        )
        encoded = (json.dumps(each, indent=2, ensure_ascii=False) for each in fields)
        # Bytes of a name that are not UTF-8 become JSON's own escapes.
        return tuple(f"{text}\n".encode(errors="backslashreplace") for text in encoded)

    def _inherited(self, scan: Path, source: str) -> dict[str, Any]:
        fields = kept_fields(fields_of(scan))
        name = BidsName.of_scan(scan)
        if reference := fields.get("SpatialReference"):
            fields["SpatialReference"] = _moved(reference, source)
        if self.is_in_dataset:
            fields.setdefault("SkullStripped", False)
            if name and "space" in name.entities:
                fields.setdefault("SpatialReference", source)
        return fields


def _source(scan: Study) -> str:
    """Return a scan as a BIDS URI, or only its name."""
    return scan.mirrored_name.name if scan.is_dicom else bids_uri(scan.files[0])


def kept_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a scan's sidecar that hold for its result and have the right type."""
    return {
        key: value
        for key in KEPT
        if (value := fields.get(key)) is not None
        and (isinstance(value, bool) if key == "SkullStripped" else _is_text(value))
    }


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_TEXT


def _moved(reference: str, source: str) -> str:
    """Return a reference that is valid in another dataset: a URI, or the scan instead of a path."""
    if reference.startswith("bids::") and source.startswith("bids:"):
        return f"bids:{source.split(':')[1]}:{reference.removeprefix('bids::')}"
    is_elsewhere = reference.startswith(("http://", "https://", "doi:"))
    return reference if is_elsewhere or reference == "orig" else source
