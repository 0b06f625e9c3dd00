"""Reading of a file's name: BIDS suffix and entities by their keys, everything else as words."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from .statement import NoScan, Statement, Weight
from .texts import read_text
from .words import DERIVED, ENTITIES, SUFFIXES, ScanKind

_ENTITY = re.compile(r"([a-z]+)-([A-Za-z0-9+]+)")
_LABEL = re.compile(r"[A-Za-z0-9+]+")
_SUBJECT = re.compile(r"(?P<prefix>.*?)(?P<subject>(sub|tpl)-[A-Za-z0-9+]+)")
_OF_SPM = re.compile(r"((?:u_|i?y_|w?j_|c[1-6]|p[0-7]|m0|s\d*|[mwrania])+)")
"""Prefixes of results of SPM and CAT12."""
_TISSUE, _FIELD = re.compile(r"[cp]\d"), re.compile(r"[uyj]_")
_MRI_FOLDER = "mri"
"""Folder of CAT12 for results next to a scan."""
_NO_AGENT = frozenset({"none", "no", "pre"})
_SIGNAL_PARTS = frozenset({"phase", "real", "imag"})


@dataclass(frozen=True, slots=True)
class NameParts:
    """Parts of a file name. prefix: text before the subject of a BIDS name. entities: keys and
    labels, in order. words: everything else. suffix: of a BIDS name with a subject or template;
    else empty. is_bids: whether it names a subject or template.
    """

    prefix: str
    entities: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    suffix: str
    is_bids: bool

    @classmethod
    def of(cls, stem: str) -> Self:
        """Split a name without its extension."""
        chunks, prefix, is_bids = stem.split("_"), "", False
        entities, words = list[tuple[str, str]](), list[str]()
        for chunk in chunks:
            subject = None if is_bids else _SUBJECT.fullmatch(chunk)
            if subject:
                prefix = "_".join([*words, subject["prefix"]])
                words, is_bids = [], True
                chunk = subject["subject"]
            key, _, label = chunk.partition("-")
            if key in ENTITIES and _LABEL.fullmatch(label):
                entities.append((key, label))
            else:
                words.append(chunk)
        suffix = words[-1] if is_bids and words and chunks[-1] == words[-1] else ""
        if suffix in SUFFIXES:
            # Programs invent keys, as in mask-brain of Clinica.
            bare = tuple(word for word in words[:-1] if not _ENTITY.fullmatch(word))
            return cls(prefix, tuple(entities), bare, suffix, is_bids)
        return cls(prefix, tuple(entities), tuple(words), "", is_bids)


def read_name(file: Path, stem: str) -> list[Statement]:
    """Return what a file's name states about its image. stem: the name without its extension.

    The folder counts only if the name states nothing, and only if it is one of masks. Whether a
    prefix such as c1 is of SPM depends on the scan beside the file, which is looked up.
    """
    parts = NameParts.of(stem)
    if tissue := _of_spm(file, stem, parts):
        return [tissue]
    found = [*_of_suffix(parts), *_of_entities(parts), *_of_words(parts)]
    if found:
        return found
    by = "its folder's name"
    of_folder = read_text(file.parent.name, by, weight=Weight.FOLDER)
    return [each for each in of_folder if each.mark == "mask"]


def _of_suffix(parts: NameParts) -> Iterator[Statement]:
    if not parts.suffix:
        return
    kind = SUFFIXES[parts.suffix]
    agent = dict(parts.entities).get("ce", "none").lower()
    text = parts.suffix
    if kind == "T1" and agent not in _NO_AGENT:
        kind, text = "T1ce", f"ce-{agent}, {parts.suffix}"
    mark = "mask" if kind == "mask" else "derived" if kind in DERIVED else ""
    yield Statement(frozenset({kind}), "its BIDS suffix", text, Weight.STANDARD, mark)


def _of_entities(parts: NameParts) -> Iterator[Statement]:
    keys = [key for key, _ in parts.entities]
    for key, label in parts.entities:
        text = f"{key}-{label}"
        match key:
            case "part" if label in _SIGNAL_PARTS:
                yield _entity("phase", text, "derived")
            case "inv" if label.isdecimal():
                yield _entity("MP2RAGE inversion", text, "derived")
            case "label":
                yield _entity("mask", text, "mask")
            case "seg" if not parts.suffix:
                yield _entity("mask", text, "mask")
            case "mode" if {"from", "to"} <= {*keys}:
                yield _entity("transform", text, "derived")
            case "desc":
                stated = read_text(label, "its BIDS entity")
                marked = (each for each in stated if each.mark)
                yield from (replace(each, text=text, weight=Weight.STANDARD) for each in marked)
            case "acq":
                stated = read_text(label, "its BIDS entity")
                yield from (replace(each, text=text, mark="") for each in stated)
            case _:
                pass


def _entity(kind: ScanKind, text: str, mark: NoScan) -> Statement:
    return Statement(frozenset({kind}), "its BIDS entity", text, Weight.STANDARD, mark)


def _of_words(parts: NameParts) -> list[Statement]:
    # The name of a subject may hold any word; what stands before it is a program's.
    of_program = (each for each in read_text(parts.prefix, "its name") if each.mark)
    found = [*of_program, *read_text(" ".join(parts.words), "its name")]
    if parts.is_bids and "roi" in {word.lower() for word in parts.words}:
        found.append(Statement(frozenset({"mask"}), "its name", "roi", mark="mask"))
    return found


def _of_spm(file: Path, stem: str, parts: NameParts) -> Statement | None:
    """Return that a file is a result of SPM or CAT12 but no scan, by its prefix."""
    prefix = parts.prefix
    if not parts.is_bids:
        prefix = next(_prefixes_of_scans(file, stem), "")
    if not prefix or not _OF_SPM.fullmatch(prefix):
        return None
    if _TISSUE.search(prefix):
        return Statement(frozenset({"mask"}), "its name", prefix, Weight.STANDARD, "mask")
    if _FIELD.search(prefix):
        return Statement(frozenset({"transform"}), "its name", prefix, Weight.STANDARD, "derived")
    return None


def _prefixes_of_scans(file: Path, stem: str) -> Iterator[str]:
    """Yield what precedes the name of a scan that lies next to the file."""
    found = _OF_SPM.match(stem)
    if not found or not (_TISSUE.search(found[0]) or _FIELD.search(found[0])):
        return
    folders = [file.parent, *([file.parent.parent] if file.parent.name == _MRI_FOLDER else [])]
    for end in range(len(found[0]), 0, -1):
        names = {file.name[end:], *(stem[end:] + suffix for suffix in _SUFFIXES_OF_SPM)}
        if stem[end:] and any(
            os.path.lexists(folder / name) for folder in folders for name in names
        ):
            yield stem[:end]


def unlike_folders(file: Path, stem: str) -> str:
    """Return that a BIDS name has another subject or session than its folders; "" otherwise."""
    chunks = stem.split("_")
    for key, folder in _entities_of(file.parent):
        named = next((each for each in chunks if each.startswith(f"{key}-")), folder)
        if named != folder:
            return f"its name is of {named}, and its folder of {folder}"
    return ""


@lru_cache(256)
def _entities_of(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the subject and session that a folder and those above it are of, the nearest first."""
    found: dict[str, str] = {}
    for name in reversed(folder.parts):
        match = _ENTITY.fullmatch(name)
        if match and match[1] in ("sub", "ses"):
            found.setdefault(match[1], name)
    return tuple(found.items())


_SUFFIXES_OF_SPM = (".nii", ".nii.gz", ".img")
