"""Scans joined to studies of several channels, by patterns of names or by suffixes as in BIDS."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from .discovery import Discovery
from .formats.registry import scan_stem
from .search import Skipped
from .volume import Blocker, Study

SessionKey: TypeAlias = tuple[Path | str, ...]
"""Key that the scans of a study have in common. For files: the folder and the text at each * of a
pattern; for DICOM series: patient, study and frame of reference.
"""

_WILDCARD = re.compile(r"(\*\*|\*)")


@dataclass(frozen=True, slots=True)
class ChannelName:
    """A channel of a model, and the naming of its scans. name: name in the model. pattern: pattern
    for the end of a file's path, or for a series' description or label; "" for the suffix of BIDS,
    or for a word of the description. In a pattern * is text that all files of a study have in
    common, and ** any text.
    """

    name: str
    pattern: str = ""

    def session_of(self, scan: Study) -> SessionKey | None:
        """Return the session of a scan if it is of this channel, else None."""
        if scan.is_dicom:
            return self._session_of_series(scan)
        file = scan.files[0]
        stem = file.with_name(scan_stem(file))
        if not self.pattern:
            before, _, word = stem.name.rpartition("_")
            return (stem.parent, before) if self._is_named(word) else None
        depth = self.pattern.count("/") + 1
        for path in (stem, file):
            if found := self._fits("/".join(path.parts[-depth:])):
                return path.parents[depth - 1], *found.groups()
        return None

    def _session_of_series(self, scan: Study) -> SessionKey | None:
        from .dicom.series import Series

        series = scan.series
        assert isinstance(series, Series)
        if self.pattern:
            is_one = self._fits(series.description) or self._fits(series.label)
        else:
            words = re.split(r"[^A-Za-z0-9]+", series.description)
            is_one = self.name.upper() == series.modality or any(map(self._is_named, words))
        return (series.patient, series.study, series.reference) if is_one else None

    def _is_named(self, word: str) -> bool:
        """Return whether a word names this channel, also as a suffix of BIDS: T1w names T1."""
        named, wanted = (text.lower().removesuffix("w") for text in (word, self.name))
        return named == wanted

    def _fits(self, text: str) -> "re.Match[str] | None":
        parts, forms = _WILDCARD.split(self.pattern), {"*": "([^/]*)", "**": "[^/]*"}
        expression = "".join(forms.get(part, re.escape(part)) for part in parts)
        return re.fullmatch(expression, text, re.IGNORECASE)


def in_channels(
    found: Discovery, channels: Sequence[ChannelName], results: Sequence[str]
) -> Discovery:
    """Return a search result whose scans are joined into studies with these channels, in their
    order.

    results: names of the output channels; if there are several, each gets its own result. A
    study that lacks a channel, or has two scans for one, has that as its blocking error; a scan
    that fits no channel is skipped. Studies of one channel without a pattern stay as found.
    """
    studies, skipped = list(found.studies), list(found.skipped)
    if len(channels) > 1 or channels[0].pattern:
        studies, unused = _joined(studies, channels)
        skipped = sorted([*skipped, *unused], key=lambda row: row.path)
    named = (with_results(study, results) for study in studies)
    return replace(found, studies=tuple(named), skipped=tuple(skipped))


def joined(scans: Sequence[Study], channels: Sequence[str]) -> Study:
    """Return one study of several scans, named after the first; channels: one for each scan."""
    parts = tuple(replace(scan, channel=name) for scan, name in zip(scans, channels, strict=True))
    names = ", ".join(f"{part.channel} {part.name}" for part in parts)
    notes = [f"{part.channel}: {note}" for part in parts for note in part.notes]
    blockers = [(part.channel, part.blocker) for part in parts if part.blocker]
    return replace(
        parts[0],
        files=tuple(file for part in parts for file in part.files),
        notes=(f"its channels are {names}", *notes),
        blocker=_named(*blockers[0]) if blockers else None,
        scans=parts,
        channel="",
        incomplete="; ".join(filter(None, (part.incomplete for part in parts))),
    )


def with_results(study: Study, channels: Sequence[str]) -> Study:
    """Return the study with a result for each output channel, in one folder if several."""
    if len(channels) == 1:
        return study
    first = _with_word(study.name, words_of(channels)[0])
    return replace(study, name=first, other_results=other_results(first, channels))


def other_results(first: PurePosixPath, channels: Sequence[str]) -> tuple[PurePosixPath, ...]:
    """Return the names of the results of further channels; first: name of the first result."""
    named = without_channel(first, channels)
    return tuple(_with_word(named, other) for other in words_of(channels)[1:])


def without_channel(first: PurePosixPath, channels: Sequence[str]) -> PurePosixPath:
    """Return the name of the first result without the word that `with_results` gave it."""
    if len(channels) == 1:
        return first
    stem, suffix = name_parts(first)
    return first.with_name(stem.removesuffix(f"_{words_of(channels)[0]}") + suffix)


def _with_word(name: PurePosixPath, word: str) -> PurePosixPath:
    stem, suffix = name_parts(name)
    return name.with_name(f"{stem}_{word}{suffix}")


def name_parts(name: PurePosixPath) -> tuple[str, str]:
    """Return a result's name without the suffix of a file of scans, and that; a series has none."""
    stem = scan_stem(name)
    return stem, name.name[len(stem) :]


def _joined(
    studies: Iterable[Study], channels: Sequence[ChannelName]
) -> tuple[list[Study], list[Skipped]]:
    skipped, apart = list[Skipped](), list[Study]()
    sessions: dict[SessionKey, dict[str, list[Study]]] = defaultdict(lambda: defaultdict(list))
    for scan in studies:
        fitting = {
            channel.name: session
            for channel in channels
            if (session := channel.session_of(scan)) is not None
        }
        match list(fitting.items()):
            case []:
                names = " or ".join(channel.name for channel in channels)
                reason = f"not recognised as channel {names}; use setting channel to assign scans"
                skipped.append(Skipped(scan.files[0], reason))
            case [(name, session)]:
                sessions[session][name].append(scan)
            case several:
                names = " and ".join(name for name, _ in several)
                apart.append(_refused(scan, f"recognised as both {names}; {_SAY}"))
    whole = (_study_of(scans, channels) for scans in sessions.values())
    return sorted([*apart, *whole], key=lambda study: study.name), skipped


def _study_of(scans: Mapping[str, Sequence[Study]], channels: Sequence[ChannelName]) -> Study:
    there = [channel.name for channel in channels if channel.name in scans]
    twice = [name for name in there if len(scans[name]) > 1]
    lacking = [channel for channel in channels if channel.name not in scans]
    if not twice and not lacking and len(there) == 1:
        return scans[there[0]][0]
    study = joined([scans[name][0] for name in there], there)
    if twice:
        names = ", ".join(_distinct_names(scans[twice[0]]))
        return _refused(study, f"{len(scans[twice[0]])} scans are its {twice[0]}: {names}; {_SAY}")
    if lacking:
        return _refused(study, "; ".join(_lack(channel, study) for channel in lacking))
    return study if _is_in_one_space(study) else _refused(study, _PLACELESS)


def _distinct_names(scans: Sequence[Study]) -> list[str]:
    """Return the scans' names, or their files' names if two results would share a name."""
    names = [str(scan.name) for scan in scans]
    return names if len({*names}) == len(names) else [scan.files[0].name for scan in scans]


_SAY = "use setting channel to distinguish them"
_PLACELESS = (
    "its series have no frame of reference, so it is unclear whether they share one space; "
    "register them and convert them to NIfTI"
)


def _is_in_one_space(study: Study) -> bool:
    """Return whether its scans share one space; files only have their affines to compare."""
    if not study.is_dicom:
        return True
    from .dicom.series import Series

    return isinstance(study.series, Series) and bool(study.series.reference)


def _lack(channel: ChannelName, study: Study) -> str:
    if study.is_dicom:
        nearby = "no other series of its study and frame of reference"
        named = f"is recognised as {channel.pattern or channel.name}"
    else:
        nearby, word = "no scan next to it", channel.pattern or f"..._{channel.name}"
        alike = ", with the same text for each *" if "*" in word.replace("**", "") else ""
        named = f"is named {word}{alike}"
    return (
        f"channel {channel.name} is missing: {nearby} {named}; use setting channel to assign scans"
    )


def _refused(study: Study, reason: str) -> Study:
    return replace(study, blocker=study.blocker or Blocker("unsupported", reason))


def _named(channel: str, blocker: Blocker) -> Blocker:
    return replace(blocker, reason=f"{channel}: {blocker.reason}")


def words_of(channels: Sequence[str]) -> tuple[str, ...]:
    """Return a unique word for each channel that a file name may contain."""
    found: list[str] = []
    for number, channel in enumerate(channels, 1):
        word = re.sub(r"[^A-Za-z0-9.+-]+", "-", channel).strip("-.")
        if not word or word.casefold() in {each.casefold() for each in found}:
            word = f"{word}{number}" if word else f"channel-{number}"
        found.append(word)
    return tuple(found)
