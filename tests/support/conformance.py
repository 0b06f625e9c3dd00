"""The tables of docs/conformance.md, made of the program's own tables, refusals and results.

PYTHONPATH=tests python -m support.conformance    # writes them
"""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pydicom as _pydicom
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.uid import UID
from support.dicom_enhanced_phantoms import write_enhanced
from support.dicom_phantoms import STORED, Phantom

from cuda_cyclegan.io.choice import Choice
from cuda_cyclegan.io.dicom.derived import elements
from cuda_cyclegan.io.dicom_network import negotiation, query_keys, querying, requesting, retrieval
from cuda_cyclegan.io.dicom_network.commands import DimseStatus, is_success
from cuda_cyclegan.io.dicom_network.limits import DEFAULT_LIMITS, DEFAULT_WEB_LIMITS
from cuda_cyclegan.io.dicom_network.negotiation import (
    COMMITMENT,
    IMAGES,
    REJECTION_NOTE,
    VERIFICATION,
)
from cuda_cyclegan.io.dicom_network.web import PAGE as ROWS_OF_A_PAGE
from cuda_cyclegan.io.discovery import discover
from cuda_cyclegan.io.maps import MapMark
from cuda_cyclegan.io.reading import read
from cuda_cyclegan.io.volume import Derivation
from cuda_cyclegan.io.writing import write
from cuda_cyclegan.pipelines.node import delivery, dimse_source
from cuda_cyclegan.pipelines.node.node import NodeSettings

pydicom: Any = _pydicom
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
_COPIED = {
    "Patient, Clinical Trial Subject": elements.PATIENT,
    "General Study, Patient Study": elements.STUDY,
    "General Series": elements.SERIES,
    "Frame of Reference": elements.FRAME_OF_REFERENCE,
    "SOP Common": elements.TEXT,
    "General Image, of each slice": elements.ACQUIRED,
    "Image Plane, of each slice": elements.PLANE,
    "General Image, of any slice": (
        *("BurnedInAnnotation", "LossyImageCompression"),
        *("LossyImageCompressionRatio", "LossyImageCompressionMethod"),
    ),
    "MR Image; Enhanced MR Image": ("MRAcquisitionType", "ApplicableSafetyStandardAgency"),
    "General Equipment, into ContributingEquipmentSequence": elements.EQUIPMENT,
}
"""Lists of copied elements by module."""


def table(name: str) -> str:
    """A table of the page as the program makes it now."""
    return "\n".join(TABLES[name]())


def on_page(page: str) -> dict[str, str]:
    """The tables that a page has, by name."""
    return {name: text.strip() for name, text in re.findall(_BLOCK, page, re.DOTALL)}


_BLOCK = r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end -->"


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"


def _classes() -> Iterator[str]:
    roles = defaultdict[str, list[bool]](lambda: [False, False])
    for used in (VERIFICATION, *IMAGES, *_used()):
        roles[used][0] = True
    for provided in accepted_classes():
        roles[provided][1] = True
    rows = ([UID(one).name, f"`{one}`", *map(_yes, role)] for one, role in roles.items())
    yield from _lines(("SOP class", "UID", "SCU", "SCP"), rows)


def _used() -> tuple[str, ...]:
    """Classes that the program uses besides storage of images."""
    return (REJECTION_NOTE, COMMITMENT, retrieval.GET, querying.FIND, querying.MOVE)


def accepted_classes() -> dict[str, tuple[str, ...]]:
    """Transfer syntaxes by preference that the node accepts for each SOP class."""
    return {
        str(one.abstract_syntax): tuple(map(str, one.transfer_syntax))
        for one in negotiation.supported()
    }


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _syntaxes() -> Iterator[str]:
    accepted = accepted_classes()
    of_images = accepted[IMAGES[0]]
    rows = (
        [
            UID(one).name,
            f"`{one}`",
            *(
                _yes(one in offered)
                for offered in (of_images, accepted[VERIFICATION], negotiation.PLAIN)
            ),
        ]
        for one in of_images
    )
    head = ("transfer syntax", "UID", "accepted for images", "for other classes", "proposed")
    yield from _lines(head, rows)


def _parameters() -> Iterator[str]:
    default, node = DEFAULT_LIMITS, NodeSettings.__dataclass_fields__
    rows = (
        ("called AE titles", "one for each `[route.TITLE]`", "the routes"),
        ("calling AE titles and addresses accepted", "those of the route", "`callers`"),
        ("calling AE title of own associations", "the route's title", "the routes"),
        ("port", str(node["port"].default), "`--port`"),
        ("address", str(node["address"].default), "`--address`"),
        ("associations accepted at a time", str(default.associations), "`--associations`"),
        ("associations requested at a time", "one for each destination and source", "no"),
        ("connections without an association", f"{default.waiting}; the oldest is closed", "no"),
        ("longest PDU received", f"{default.pdu:,} bytes", "no"),
        (
            "longest PDU sent",
            f"what the peer accepts, at most {requesting.LONGEST_PIECE:,} bytes",
            "no",
        ),
        ("objects of an association", f"{default.objects:,}", "no"),
        ("bytes of an association", f"{default.bytes >> 30} GiB", "no"),
        ("ARTIM timer: association request", f"{default.request_seconds:.0f} s", "no"),
        ("within a PDU", f"{default.pdu_seconds:.0f} s", "no"),
        ("between two PDUs", f"{default.idle_seconds:.0f} s", "no"),
        ("connecting to a peer", f"{requesting.CONNECT_SECONDS:.0f} s", "no"),
        ("response of a peer", f"{requesting.ANSWER_SECONDS:.0f} s", "no"),
        (
            "pause between tries to reach a peer",
            f"{delivery.FIRST_PAUSE:.0f} s, doubled up to {delivery.LONGEST_PAUSE:.0f} s",
            "no",
        ),
        ("asynchronous operations", "none: one operation at a time", "no"),
        ("implementation class UID", f"`{negotiation.IMPLEMENTATION_UID}`", "no"),
        ("implementation version name", f"`{negotiation.IMPLEMENTATION_NAME}`", "no"),
        (
            "DICOMweb: bytes of an object",
            f"{DEFAULT_WEB_LIMITS.bytes >> 30} GiB",
            "`source-object-limit`",
        ),
        ("rows of a search at a source", f"{DEFAULT_WEB_LIMITS.listed:,}", "`source-list-limit`"),
        (
            "C-MOVE: without a response and an object",
            f"{dimse_source.LONGEST_SILENCE:.0f} s",
            "no",
        ),
        ("C-MOVE: objects of a request at level IMAGE", str(dimse_source.MOST_UIDS), "no"),
        ("DICOMweb: rows of a page", str(ROWS_OF_A_PAGE), "no"),
    )
    yield from _lines(("parameter", "value", "setting"), rows)


def _responses() -> Iterator[str]:
    reasons = defaultdict[DimseStatus, set[str]](set)
    for status, reason in refusals():
        reasons[status].add(reason)
    rows = [[f"{DimseStatus.SUCCESS:04X}", "the object is on disk, or was there before"]]
    rows += [[f"{each:04X}", "; ".join(sorted(found))] for each, found in sorted(reasons.items())]
    yield from _lines(("status", "reason, as in ErrorComment"), rows)


def refusals() -> Iterator[tuple[DimseStatus, str]]:
    """Each status and reason with which the sources refuse a request."""
    for folder in ("io/dicom_network", "pipelines/node"):
        for file in sorted((ROOT / folder).glob("*.py")):
            tree = ast.parse(file.read_text("utf-8"))
            for function in ast.walk(tree):
                if isinstance(function, ast.Module | ast.FunctionDef):
                    yield from _refusals_in(function)


def _refusals_in(body: ast.Module | ast.FunctionDef) -> Iterator[tuple[DimseStatus, str]]:
    texts = dict[str, ast.expr]()
    for node in ast.walk(body):
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str())):
                texts[name] = node.value
            case _:
                pass
    for node in ast.walk(body):
        match node:
            case ast.Call(
                func=ast.Name("Refusal" | "NotUnderstoodError"),
                args=[ast.Attribute(ast.Name("DimseStatus"), status), reason],
            ):
                reason = texts.get(reason.id, reason) if isinstance(reason, ast.Name) else reason
                yield DimseStatus[status], _text(reason)
            case _:
                pass


def _text(node: ast.expr) -> str:
    """The text of an expression, with ... for what varies."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(parts):
            return "".join(map(_text, parts))
        case _:
            return "..."


def _answers() -> Iterator[str]:
    stored = [status for status in range(1, 0x10000) if is_success(status)]
    ranges = ", ".join(_ranges(stored))
    duplicate = f"{DimseStatus.DUPLICATE:04X}"
    rows = (
        ("0000", "stored"),
        (ranges, "stored; the status is noted with the result"),
        (duplicate, "stored, if an earlier sending of the object had no answer; else as below"),
        ("any other", "not stored; sent again, until the route's `retry` is over"),
        ("no response, A-ABORT, or a closed connection", "unknown; sent again"),
    )
    yield from _lines(("status of the peer", "outcome for the object"), rows)


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """Spell ascending numbers as ranges."""
    first = last = numbers[0]
    for number in (*numbers[1:], -1):
        if number == last + 1:
            last = number
            continue
        yield f"{first:04X}" if first == last else f"{first:04X} to {last:04X}"
        first = last = number


def _queries() -> Iterator[str]:
    """The keys that searches send, recorded from a `DimseSource`."""
    asked = dict[querying.QueryLevel, Mapping[str, str]]()

    class Recorder:
        """Peer that finds one of each, and notes what it is asked."""

        def find(self, level: querying.QueryLevel, keys: Mapping[str, str]) -> Any:
            asked[level] = keys
            return {"1": {}}

    recorder: Any = Recorder()
    source = dimse_source.DimseSource(recorder, Any, "", lambda: True)
    filters = dict.fromkeys(query_keys.STUDY_KEYS, "")
    for study in source.studies(filters):
        source.objects(study)
    rows = (
        (level, ", ".join(dict.fromkeys((querying.UIDS[level], *keys))))
        for level, keys in asked.items()
    )
    yield from _lines(("level", "keys; at STUDY those that `source-query` has"), rows)


def _retrievals() -> Iterator[str]:
    statuses = {f"{status:04X}" for status in querying.MEANINGS}
    failures = ", ".join(sorted(statuses - {f"{querying.WITH_WARNINGS:04X}"}))
    pending = ", ".join(f"{status:04X}" for status in querying.PENDING)
    complete = querying.Moved(querying.WITH_WARNINGS, 0).is_complete
    assert complete
    assert not querying.Moved(querying.WITH_WARNINGS, 1).is_complete
    rows = (
        (f"C-FIND {pending}", "one match"),
        ("C-FIND 0000", "end of the list"),
        ("any other of C-FIND", "the search failed, and is repeated after a pause"),
        (f"C-MOVE {pending}", "waiting goes on"),
        ("C-MOVE 0000, and the inbox has each listed image", "fetched"),
        (
            f"C-MOVE {querying.WITH_WARNINGS:04X} without failed sub-operations, and likewise",
            "fetched",
        ),
        (
            f"any other of C-MOVE, such as {failures}; or images are missing",
            "not fetched; what is missing is requested again after a pause",
        ),
        ("no response, A-ABORT, or a closed connection", "likewise"),
    )
    yield from _lines(("status of the peer", "outcome"), rows)


def _copied() -> Iterator[str]:
    rows = ([module, ", ".join(keywords)] for module, keywords in _COPIED.items())
    yield from _lines(("module", "attributes copied from the source"), rows)


COPIED = frozenset(
    keyword
    for keywords in _COPIED.values()
    if keywords is not elements.EQUIPMENT
    for keyword in keywords
)
"""Attributes that a result has from its source."""


def _generated() -> Iterator[str]:
    kinds = {kind: [_result_of(kind, number) for number in (1, 2)] for kind in KINDS}
    keywords = {
        element.keyword for pair in kinds.values() for one in pair for element in one
    } - COPIED
    rows = (
        [keyword, f"({_tag(keyword)})", *(_value(keyword, pair) for pair in kinds.values())]
        for keyword in sorted(keywords, key=lambda each: tag_for_keyword(each) or 0)
    )
    yield from _lines(("attribute", "tag", *kinds), rows)


def _tag(keyword: str) -> str:
    tag = tag_for_keyword(keyword) or 0
    return f"{tag >> 16:04X},{tag & 0xFFFF:04X}"


def _value(keyword: str, results: Sequence[Any]) -> str:
    """The value that all results have, or that each has one of its own."""
    values = [one.get(keyword) for one in results]
    if None in values and all(keyword not in one for one in results):
        return "-"
    if all(value in (None, "", []) for value in values):
        return "empty"
    if dictionary_VR(keyword) in ("SQ", "OW") or values[0] != values[1]:
        return "computed"
    return "\\".join(map(str, values[0])) if isinstance(values[0], list | _MANY) else str(values[0])


_MANY = pydicom.multival.MultiValue
_SOURCE, _ENHANCED = Phantom("MR", intercept=0.0), "enhanced MR"
KINDS = {
    "CT": Derivation("", "T1", "CT", "", "", STORED),
    "MR": Derivation("", "T1", "T2", "", "", STORED),
    _ENHANCED: Derivation("", "T1", "T2", "", "", STORED),
    "other modality": Derivation("", "T1", "CT (from MR)", "", "", STORED),
    "map": Derivation("", "T1", "T2", "", "", STORED, shows=MapMark("spread-sd", "", "")),
}
"""Kinds of results, with the derivation of each."""


def _result_of(kind: str, number: int) -> Any:
    """The first object of a result; what depends on source and model depends on the number."""
    derivation = replace(
        KINDS[kind],
        model=f"model-{number}",
        program=f"0.{number}",
        fingerprint=str(number) * 64,
        newest_source=STORED + 86_500 * number,
    )
    if derivation.shows:
        derivation = replace(derivation, shows=replace(derivation.shows, words=f"kind {number}"))
    size = {"rows": 20 + number, "columns": 24 + number, "slices": 12 + number}
    varied = replace(_SOURCE, number=number, series=f"1.2.3.{number}", seed=number, **size)
    with TemporaryDirectory() as folder:
        source, result = Path(folder, "source"), Path(folder, "result")
        if kind == _ENHANCED:
            write_enhanced(varied, source / "1.dcm")
        else:
            varied.write(source)
        [study] = discover([source], None, Choice()).studies
        scan = read(study)
        voxels = scan.voxels.astype(np.uint16 if number == 1 else np.int16)
        line = {"slope": 0.25 * number, "intercept": 300.0 * (1 - number)}
        write(replace(scan, voxels=voxels, **line), result, derivation)
        files = sorted(result.iterdir())
        return pydicom.dcmread(files[min(number, len(files)) - 1])


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "classes": _classes,
    "parameters": _parameters,
    "syntaxes": _syntaxes,
    "responses": _responses,
    "answers": _answers,
    "queries": _queries,
    "retrievals": _retrievals,
    "copied": _copied,
    "generated": _generated,
}


def main() -> None:
    """Write the tables of the page."""

    def current(found: re.Match[str]) -> str:
        return f"<!-- table: {found[1]} -->\n\n{table(found[1])}\n\n<!-- end -->"

    PAGE.write_text(re.sub(_BLOCK, current, PAGE.read_text("utf-8"), flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
