"""Output and results of a command as plain text, without what differs from run to run."""

import contextlib
import gzip
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom as _pydicom

pydicom: Any = _pydicom

_MEMORY = r"\d[\d.,]* ?[KMGT]i?B(?!\w)"
_UNITS = r"(?:ms|s|min|h|MB/s|GB/s|k?voxels/s|[kMG]vox/s)(?![\w])"
_NUMBER = r"(?:(?:\d[\d.,]* ?(?:to|of|and|-) ?)?\d[\d.,]*(?:e[+-]?\d+)?)"
_SPEEDS = "gzip|Disk|Memory"
"""Subjects that `doctor` measures, and finds too slow or too little on a busy machine."""
_VOLATILE = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b\d\d:\d\d(:\d\d)?\b"), "<time>"),
    (re.compile(rf"\b{_NUMBER} ?{_UNITS}"), "<n>"),
    (
        re.compile(
            r"\b[\d.]+[kM]? voxels/s|\b\d+\.\d (?=stages ran)|\b\d+ ?%|(?<=Total time: )\S+"
        ),
        "<n>",
    ),
    (re.compile(rf"^(?:ok|warning) +({_SPEEDS})\b.*(?:\n +>.*)*", re.M), r"\1 <measured>"),
    (re.compile(r"^All checks passed$|^\d+ warnings?$|(?<=failure), \d+ warnings?$", re.M), ""),
    (re.compile(r"─+"), "─"),
    (re.compile(r"\b(packs|writes|pid|process) \d+"), r"\1 <n>"),
)
_TABLES = {
    "study read ": re.compile(r"(?<=\s)[\d.]+[kM]?(?=\s)"),
    "study job ": re.compile(r"(?<=\s)\d+\.\d+(?=\s)"),
    "study patches ": re.compile(r"(?<=iB )[\d.]+"),
}
"""Beginnings of tables, and what in their rows was measured."""
_SENTENCE = re.compile(r"[\w <>]+: ")
_TRACEBACK = re.compile(r"^Traceback .*\n(?:[ ].*\n)*(?:\w+\.)*", re.M)
_MEASURED_MEMORY = re.compile(rf"\b(\d[\d.,]* ?(of|to) )?{_MEMORY}")
_PAGE_KEY = re.compile(r'"key":"[0-9a-f]{16}"')
"""Key of a page's marks in the browser, a hash of the folders it shows."""
_BATCH = re.compile(r"\b\d{8}-[0-9a-z]{6}\b")
_BATCH_LINE = re.compile(r"^\[\d+/(\d+)\] |^<time> (?=\S+: <batch)|^(?=<batch \d+> )")
_DATES = ("ContentDate", "ContentTime", "InstanceCreationDate", "InstanceCreationTime")
_HIDDEN = ("libraries", "machine", "started", "ended", "host", "worker")
_MEASURED = re.compile(
    r"second|bytes|^use$|^stages$|^when$|_per_|peak|^submitted$|^not_before$|^latency$|^call$|^taken$|^ceilings$"
)


class Stilled:
    """Filter that removes from texts what differs from run to run: times, folders, names of
    batches.

    root: the folder of the run. Batches are numbered as they are met.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._batches: dict[str, str] = {}

    def text(self, text: str, *, keeps_memory: bool = False, is_still: bool = False) -> str:
        """keeps_memory: because it was computed. is_still: nothing in it was measured."""
        text = text.replace(str(self._root), "<root>").replace(sys.prefix, "<prefix>")
        text = _TRACEBACK.sub("Traceback: ", _BATCH.sub(self._numbered, text))
        if is_still:
            return text
        for pattern, stands in _VOLATILE:
            text = pattern.sub(stands, text)
        if not keeps_memory:
            text = _MEASURED_MEMORY.sub("<memory>", text)
        lines = [re.sub(r"(?<=\S) {2,}", " ", line.rstrip()) for line in text.splitlines()]
        return "\n".join(_in_order(_rows(lines)))

    def _numbered(self, found: "re.Match[str]") -> str:
        return self._batches.setdefault(found[0], f"<batch {len(self._batches) + 1}>")

    def json(self, value: Any, place: str = "") -> Any:
        """A JSON value with every measured number as one that its place alone decides."""
        match value:
            case {"subject": str(subject), "state": "ok" | "warning"} if re.search(
                _SPEEDS, subject
            ):
                return subject
            case dict():
                is_of_stages = place.endswith(("/stages", "/when"))
                return {
                    key: "<hidden>"
                    if inner is not None and key in _HIDDEN
                    else self.json(inner, f"{place}/{key}")
                    for key, inner in (sorted(value.items()) if is_of_stages else value.items())
                }
            case list():
                if place.endswith("/batches"):  # in the order of their random names
                    value = sorted(value, key=lambda batch: self.text(batch["batch"]))
                return [self.json(inner, f"{place}/{at}") for at, inner in enumerate(value)]
            case str():
                return self.text(value)
            case bool() | None:
                return value
            case _:
                return _stands_for(place) if _is_measured(place) else value

    def file(self, path: Path) -> str:
        """A file as its hash, or as text if what it says differs from run to run."""
        match path.suffix:
            case ".json":
                found = json.loads(path.read_text())
                shown = _tracks(found) if "traceEvents" in found else self.json(found)
                return json.dumps(shown, indent=1)
            case ".jsonl":
                return "\n".join(sorted(_manifest_lines(path)))
            case ".html":
                page = _PAGE_KEY.sub('"key":"<key>"', path.read_text())
                return self.text(page, is_still=True)
            case ".gz":
                return digest(gzip.decompress(path.read_bytes()))  # packed in parts of any size
            case ".mha" | ".mhd" | ".nrrd" | ".zraw":
                return digest(_unpacked(path.read_bytes()))
            case _:
                content = path.read_bytes()
                is_dicom = content[128:132] == b"DICM"
                return dicom_record(path) if is_dicom else digest(content)


def _unpacked(content: bytes) -> bytes:
    """Return a header without the number of packed bytes, and its voxels unpacked."""
    content = re.sub(rb"CompressedDataSize = \d+\n", b"", content, count=1)
    header, packed = b"", content
    for end in (b"ElementDataFile = LOCAL\n", b"\n\n"):
        if end in content[:4096]:
            header, _, packed = content.partition(end)
            break
    with contextlib.suppress(zlib.error):  # not compressed
        packed = zlib.decompress(packed, wbits=zlib.MAX_WBITS | 32)  # zlib or gzip
    return header + packed


def rough(text: str) -> str:
    """The words of a benchmark without any number, bar or order."""
    lines = re.sub(r"[\d.█▏▎▍▌▋▊▉]+[kMGT]?|<n>|^More than .*", " ", text, flags=re.M).splitlines()
    return "\n".join(sorted(" ".join(line.split()) for line in lines if line.strip()))


def _rows(lines: list[str]) -> Iterator[str]:
    """All lines, those of tables without measured numbers."""
    measured: re.Pattern[str] | None = None
    for line in lines:
        begun = [pattern for start, pattern in _TABLES.items() if line.startswith(start)]
        measured = begun[0] if begun else None if _SENTENCE.match(line) else measured
        yield measured.sub("<n>", line) if measured else line


def _in_order(lines: Iterator[str]) -> Iterator[str]:
    """The lines of studies sorted, which end in any order."""
    waiting: list[str] = []
    for line in lines:
        if _BATCH_LINE.match(line):
            waiting.append(_BATCH_LINE.sub(r"[\1] ", line))
            continue
        yield from sorted(waiting)
        waiting = []
        yield line
    yield from sorted(waiting)


def _is_measured(place: str) -> bool:
    *folders, last = place.split("/")
    return last != "devices" and any(_MEASURED.search(name) for name in (*folders, last))


def _stands_for(place: str) -> float:
    """A number in hundredths, or of bytes; in lists one more than that before."""
    folder, _, last = place.rpartition("/")
    if last.isdecimal():
        return _stands_for(folder) + int(last)
    number = 100 + zlib.crc32(re.sub(r"/\d+/", "/", place).encode()) % 900
    return number << 20 if last.endswith("bytes") else number / 100


def _manifest_lines(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        for state in (*entry["inputs"], *entry["outputs"]):
            state["modified_ns"] = state["changed_ns"] = 0
        for state in entry["outputs"]:
            if state["name"].endswith(".gz"):
                state["size"] = state["sha256"] = 0
        yield json.dumps(entry)


def _tracks(trace: Any) -> list[list[str]]:
    """Return what ran, by name, and how often."""
    return sorted([event["name"], event["ph"]] for event in trace["traceEvents"])


def dicom_record(path: Path) -> str:
    """The elements of a DICOM file, without the moment of its making; pixels as a hash."""
    data = pydicom.dcmread(path)
    for name in _DATES:
        if name in data:
            data[name].value = ""
    pixels = digest(data.PixelData) if "PixelData" in data else "none"
    data.pop("PixelData", None)
    return f"{digest(str(data.file_meta) + str(data))} pixels {pixels}"


def digest(content: bytes | str) -> str:
    """The start of a SHA-256, enough to tell files apart."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[
        :20
    ]
