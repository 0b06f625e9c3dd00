"""Evidence about the contrast of a scan: its name, JSON sidecar, header, and DICOM elements."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...io.contrast.fields import HeaderFields
from ...io.contrast.names import read_name, unlike_folders
from ...io.contrast.statement import Statement, Weight
from ...io.discovery import KnownHeaders, header_fields
from ...io.formats.marks import mark_in_texts
from ...io.formats.registry import scan_stem
from ...io.labels import labels_of
from ...io.sidecars import SidecarReader
from ...io.volume import PROGRAM, Study

HEADER = "its header"
_NO_FIELDS = HeaderFields("")


@dataclass(frozen=True, slots=True)
class ScanEvidence:
    """Evidence about one scan. stated: statements of its sources. fields: of its header or sidecar.
    remarks: doubts about its place in a dataset, in words.
    """

    stated: tuple[Statement, ...] = ()
    fields: HeaderFields = _NO_FIELDS
    remarks: tuple[str, ...] = ()

    @property
    def read_as(self) -> str:
        """Kinds and their sources, such as "T1w: BIDS suffix"; "" if nothing was read."""
        sources: dict[str, list[str]] = {}
        for each in self.stated:
            words, source = each.text, each.by.removeprefix("its ")
            if each.is_of_field:
                words, source = each.in_words, each.text
            sources.setdefault(words, []).append(source)
        return "; ".join(
            f"{words}: {', '.join(dict.fromkeys(found))}" for words, found in sources.items()
        )


class EvidenceReader:
    """Reader of the evidence of a search; each scan is read once. known: headers read before."""

    def __init__(self, known: KnownHeaders | None = None) -> None:
        self._known, self._sidecars = known, SidecarReader()
        self._found: dict[tuple[Path, ...], ScanEvidence] = {}

    def of(self, scan: Study) -> ScanEvidence:
        """Return the evidence about a scan."""
        found = self._found.get(scan.files)
        if found is None:
            found = _of_series(scan) if scan.is_dicom else self._of_file(scan.files[0])
            self._found[scan.files] = found
        return found

    def _of_file(self, file: Path) -> ScanEvidence:
        stem, sidecar = scan_stem(file), self._sidecars.fields_of(file)
        fields, stated = _NO_FIELDS, read_name(file, stem)
        if sidecar:
            fields = HeaderFields.of_sidecar(sidecar)
            stated += [*fields.statements(), *_synthetic(sidecar)]
        if contents := labels_of(file, self._known).contents:
            stated.append(Statement(frozenset({"mask"}), HEADER, contents, Weight.STANDARD, "mask"))
        return ScanEvidence(tuple(stated), fields, tuple(self._remarks(file, stem)))

    def _remarks(self, file: Path, stem: str) -> Iterator[str]:
        if unlike := unlike_folders(file, stem):
            yield unlike
        if _is_ours(self._sidecars.of_dataset(file)):
            yield f"its dataset states that {PROGRAM} generated it"


def _of_series(scan: Study) -> ScanEvidence:
    fields = header_fields(scan)
    return ScanEvidence(tuple(fields.statements()), fields)


def _synthetic(sidecar: Mapping[str, Any]) -> Iterator[Statement]:
    """Yield that a sidecar is of a result, also one that another program wrote from DICOM."""
    texts = [value for value in sidecar.values() if isinstance(value, str)]
    if mark_in_texts(texts) or _is_ours(sidecar):
        kinds = frozenset({"synthetic image"})
        yield Statement(kinds, "its JSON sidecar", "synthetic", Weight.STANDARD, "synthetic")


def _is_ours(fields: Mapping[str, Any]) -> bool:
    made: object = fields.get("GeneratedBy")
    programs = cast("list[object]", made) if isinstance(made, list) else []
    named = (cast("dict[str, object]", each) for each in programs if isinstance(each, dict))
    return any(each.get("Name") == PROGRAM for each in named)
