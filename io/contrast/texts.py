"""Reading of free text: a file name outside BIDS, a series description, a model's source."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .statement import Statement, Weight
from .words import AMBIGUOUS, TABLE, ScanKind, WordRole, modality_of

_PHRASES = (
    (r"dark[^a-z0-9]?fluid|da[^a-z0-9]fl(?![a-z0-9])", "flair"),
    (r"t2[-_ ]?(\*|star(?![a-z]))", "t2star"),
    (r"\+ ?c(?![a-z0-9])|(?<![a-z0-9])c ?\+|\+ ?(gd|gad|km)(?![a-z])", "postcontrast"),
    (r"post[-_ ]?(contrast|gd|gad|gado|km)(?![a-z])", "postcontrast"),
    (r"(pre|non?|without|w/o|w_o)[-_ ]?(contrast|gd|gad|km)(?![a-z])", "native"),
    (r"post[-_ ]?(op|surg|treat|chemo|rt(?![a-z]))[a-z]*", "scan"),
    (r"(?<![a-z])(s|syn|synth|fake|pseudo|virtual)ct(?![a-z])", "synthetic ct"),
    (r"(?<![a-z])(s|syn|synth|fake|pseudo|virtual)mri?(?![a-z])", "synthetic mr"),
    (r"(?<![a-z])(syn|synth|fake|pseudo|virtual)(?=(t1|t2|pet|flair))", "synthetic"),
    (r"(?<![a-z])rest(ing)?[-_ ]?(\d+(?![a-z0-9])|state)", "bold"),
    (r"mp[-_ ]rage", "mprage"),
    (r"(?<![a-z])pet[-_/ ]?ct(?![a-z])", "pet ct"),
    (r"cone[-_ ]?beam([-_ ]?ct)?", "cbct"),
    (r"proton[-_ ]?density", "pdw"),
    (r"time[-_ ]of[-_ ]flight", "tof"),
    (r"(?<![a-z0-9])(3|three|tri)[-_ ]?pl(ane)?(?![a-z0-9])", "localizer"),
    (r"(in|out|out[-_ ]of|opp|opposed|arterial|venous|delayed)[-_ ]?phase", "scan"),
    (r"inverse[-_ ]?warped", "inversewarped"),
    (r"((?<![a-z])i|ultra|low|half|quarter|full|normal|standard)[-_ ]?dose(?![a-z])", "scan"),
    (r"grad[-_ ]?warp|(b1|bias)[-_ ]?(field)?[-_ ]?corr[a-z]*", "scan"),
    (r"(gre|spin[-_ ]?echo)?[-_ ]?field[-_ ]?map[a-z]*|gre[-_ ]field", "fieldmap"),
)
"""Terms of several words, or with other signs than letters and digits, and the word for each."""

_ANY_PHRASE = re.compile("|".join(pattern for pattern, _ in _PHRASES), re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ACRONYM = re.compile(r"([A-Z0-9]{2,})[a-z]+")
_B_VALUE = re.compile(r"b[1-9]\d{1,3}")
_NUMBER = re.compile(r"\d+d?")
_SHORT = frozenset({"t1", "t2", "ct", "mr", "to", "gd"})
"""Words of two letters that may be written together with others, as in T2toT1."""
_SWAP = "inversewarped"
"""Word of ANTs for the fixed image, warped to the moving one."""
_SIDES = frozenset({"l", "r", "left", "right", "lh", "rh"})
_DIRECTIONS = frozenset({"ap", "pa", "lr", "rl", "is", "si"})
_MEANT_TOGETHER: dict[frozenset[ScanKind], ScanKind] = {
    frozenset({"T2", "FLAIR"}): "FLAIR",
    frozenset({"T2", "STIR"}): "STIR",
    frozenset({"FLAIR", "STIR"}): "STIR",
    frozenset({"T2", "FLAIR", "STIR"}): "STIR",
    frozenset({"T2", "T2*"}): "T2*",
    frozenset({"T2", "DIR"}): "DIR",
    frozenset({"T1", "T1ce"}): "T1ce",
    frozenset({"T1", "PSIR"}): "PSIR",
    frozenset({"T1", "spectroscopy"}): "spectroscopy",
    frozenset({"T2*", "SWI"}): "SWI",
    frozenset({"PD", "T2"}): "PD and T2",
    frozenset({"CT", "CBCT"}): "CBCT",
    frozenset({"diffusion", "EPI"}): "diffusion",
    frozenset({"functional", "EPI"}): "functional",
    frozenset({"perfusion", "EPI"}): "perfusion",
    frozenset({"perfusion", "functional"}): "perfusion",
}
"""Kinds that several words name together, such as T2 FLAIR."""
_UNCLEAR_TOGETHER = (frozenset({"T1", "FLAIR"}), frozenset({"PET", "CT"}))
"""Kinds of which a scan with both words may be either: GE's T1 FLAIR, the CT of a PET/CT."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Word in small letters, with its role and kind; shown: the same as written in the text."""

    word: str
    role: WordRole | None
    kind: ScanKind = ""
    shown: str = ""

    @property
    def is_number(self) -> bool:
        return self.word[0].isdigit()


def read_text(
    text: str, by: str, *, is_description: bool = False, weight: Weight = Weight.WORDS
) -> list[Statement]:
    """Return what a text states about an image; nothing if it has no known word.

    by: source of the text, in words. is_description: whether it describes a DICOM series, in which
    a structure is no mask, and "post" means a contrast agent. weight: weight of the evidence.
    """
    return [*_read_text(text, by, is_description, weight)] if text else []


@lru_cache(1024)
def _read_text(text: str, by: str, is_description: bool, weight: Weight) -> tuple[Statement, ...]:
    if _ANY_PHRASE.search(text):
        for pattern, word in _PHRASES:
            text = re.sub(pattern, f" {word} ", text, flags=re.IGNORECASE)  # compiled on first use
    pieces = [piece for word in _WORD.findall(text) for piece in _pieces(word)]
    if not any(piece.role for piece in pieces):
        return ()
    found = _Text(_moving(pieces), is_description).statements(by)
    if weight == Weight.WORDS:
        return tuple(found)
    return tuple(replace(each, weight=weight) for each in found)


@lru_cache(4096)
def _pieces(word: str) -> tuple[_Piece, ...]:
    """Return the known words that a word consists of, or the word itself if there are none."""
    found = _segmented(word.lower())
    parts = _CAMEL.split(word)
    acronym = _ACRONYM.fullmatch(word)
    if not found and acronym and _is_contrast(acronym[1].lower()):
        found = _segmented(acronym[1].lower())
    if not found and len(parts) > 1:
        each = [_segmented(part.lower()) or (_Piece(part.lower(), None),) for part in parts]
        found = tuple(piece for pieces in each for piece in pieces)
    return tuple(replace(piece, shown=word) for piece in found or (_Piece(word.lower(), None),))


def _is_contrast(word: str) -> bool:
    return word in TABLE and TABLE[word][0] == "contrast"


def _segmented(word: str) -> tuple[_Piece, ...]:
    """Return the fewest known words that make up a word, and numbers between them; or none."""
    if found := _known(word):
        return (found,)
    best = list[tuple[_Piece, ...] | None]([(), *[None] * len(word)])
    for end in range(1, len(word) + 1):
        for start in range(end):
            before = best[start]
            piece = None if before is None else _part(word[start:end])
            if before is None or piece is None:
                continue
            if piece.is_number and before and before[-1].is_number:
                continue
            shortest = best[end]
            if shortest is None or len(before) + 1 < len(shortest):
                best[end] = (*before, piece)
    found = best[-1] or ()
    if not any(piece.role and not piece.is_number for piece in found):
        return ()
    return tuple(
        replace(piece, role="to") if piece.word == "2" and 0 < at < len(found) - 1 else piece
        for at, piece in enumerate(found)
    )


def _known(word: str) -> _Piece | None:
    if word in TABLE:
        return _Piece(word, *TABLE[word])
    if word in AMBIGUOUS:
        return _Piece(word, "plain")
    if word.endswith("mask"):  # of any organ
        return _Piece(word, *TABLE["mask"])
    return _Piece(word, "contrast", "diffusion") if _B_VALUE.fullmatch(word) else None


def _part(word: str) -> _Piece | None:
    if _NUMBER.fullmatch(word):
        return _Piece(word, "plain")
    return (
        _Piece(word, *TABLE[word]) if word in TABLE and (len(word) > 2 or word in _SHORT) else None
    )


def _moving(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return the words about the image itself, without the contrast whose space it is in.

    That follows a word such as "to", or precedes "space" if another contrast comes first. ANTs
    names the two in reverse if the fixed image was warped to the moving one.
    """
    moving, space = list[_Piece](), list[_Piece]()
    is_next, is_swapped = False, any(piece.word == _SWAP for piece in pieces)
    for at, piece in enumerate(pieces):
        if piece.role == "to" and moving:
            is_next = piece.word in _TARGET or any(each.role in _SAYS for each in moving)
        elif is_next and piece.word in _SPACES:
            is_next = False
        elif piece.role == "contrast" and (is_next or _is_space(pieces, at, moving)):
            space.append(piece)
            is_next = False
        else:
            moving.append(piece)
    if is_swapped and space:
        return [*space, *(each for each in moving if each.role != "contrast")]
    return moving


_TARGET = ("to", "into", "onto", "in", "on", "2")
_SPACES = ("mni", "standard", "template", "highres")
_SAYS: tuple[WordRole, ...] = ("contrast", "derived", "mask", "part", "synthetic")


def _is_space(pieces: Sequence[_Piece], at: int, before: Sequence[_Piece]) -> bool:
    is_named = at + 1 < len(pieces) and pieces[at + 1].word == "space"
    others = {each.kind for each in before if each.role == "contrast"} - {pieces[at].kind}
    return is_named and bool(others)


class _Text:
    """Words of a text about one image."""

    def __init__(self, pieces: Sequence[_Piece], is_description: bool) -> None:
        self._pieces, self._is_description = pieces, is_description
        self._contrasts = [
            piece
            for at, piece in enumerate(pieces)
            if piece.role == "contrast" and not self._is_direction(at)
        ]

    def statements(self, by: str) -> list[Statement]:
        """Return what the words state; by: their source."""
        if found := self._mask():
            return [Statement(frozenset({"mask"}), by, found.shown, mark="mask")]
        stated: list[Statement] = []
        synthetic = [each for at, each in enumerate(self._pieces) if self._is_synthetic(at)]
        if synthetic:
            kinds = frozenset({"synthetic image"})
            stated.append(Statement(kinds, by, synthetic[0].shown, mark="synthetic"))
        derived = [piece for at, piece in enumerate(self._pieces) if self._is_derived(at)]
        if derived:
            kinds = frozenset(_OTHERWISE_DERIVED.get(piece.word, piece.kind) for piece in derived)
            return [*stated, Statement(kinds, by, _shown(derived), mark="derived")]
        return [*stated, *self._contrast(by)]

    def _is_synthetic(self, at: int) -> bool:
        """Return whether a word names a network's output, or "from" the source of a contrast."""
        if self._pieces[at].word != "from":
            return self._pieces[at].role == "synthetic"
        before, after = self._pieces[:at], self._pieces[at + 1 :]
        return all(any(each.role == "contrast" for each in part) for part in (before, after))

    def _contrast(self, by: str) -> list[Statement]:
        kinds, others = self._kinds(), self._alternatives()
        shown = _shown(self._contrasts)
        if not kinds and (direction := self._encoding()):
            return [Statement(frozenset({"EPI"}), by, direction)]
        if frozenset(kinds) in _UNCLEAR_TOGETHER:
            return [Statement(frozenset(kinds), by, shown, is_open=True)]
        if others:
            doubtful = _shown([each for each in self._pieces if each.word in others])
            shown = ", ".join(filter(None, (shown, doubtful)))
            every = frozenset({*kinds, *others.values()})
            return [Statement(every, by, shown, is_open=True)]
        is_coarse = kinds == {"MR"}
        return [Statement(frozenset(kinds), by, shown, is_coarse=is_coarse)] if kinds else []

    def _encoding(self) -> str:
        """Return the direction of phase encoding that a name ends with, as those of EPI do."""
        ends = [piece for piece in self._pieces if not piece.is_number]
        return ends[-1].shown if len(ends) > 1 and ends[-1].shown in ("AP", "PA") else ""

    def _mask(self) -> _Piece | None:
        for at, piece in enumerate(self._pieces):
            if piece.role == "mask" and not self._is_undone(at):
                return piece
            if piece.role == "part" and self._is_labelled(at) and self._is_last(at):
                return piece
        return None

    def _is_undone(self, at: int) -> bool:
        return at + 1 < len(self._pieces) and self._pieces[at + 1].role == "undo"

    def _is_labelled(self, at: int) -> bool:
        """Return whether a structure follows a contrast: T1_hippocampus, not hippocampus_001."""
        named = any(piece.role == "contrast" for piece in self._pieces[:at])
        return named and not self._is_description and not self._is_undone(at)

    def _is_last(self, at: int) -> bool:
        """Return whether nothing but a contrast, numbers, sides and plain words is around."""
        return all(
            piece.role is not None or piece.is_number or piece.word in _SIDES
            for piece in self._pieces[_first_contrast(self._pieces) :]
            if piece is not self._pieces[at]
        )

    def _is_direction(self, at: int) -> bool:
        """Return whether "dir" counts the directions of diffusion, or names that of phases."""
        near = [*self._pieces[max(at - 1, 0) : at], *self._pieces[at + 1 : at + 2]]
        is_counted = any(each.is_number or each.word in _DIRECTIONS for each in near)
        return self._pieces[at].word == "dir" and is_counted

    def _is_derived(self, at: int) -> bool:
        piece, after = self._pieces[at], self._pieces[at + 1 :]
        is_end = all(each.is_number for each in after)
        match piece.word:
            case "fa" | "md":  # also the flip angle, and a doctor
                return not (after and after[0].is_number) and (is_end or self._names("diffusion"))
            case "phase" | "pha":
                return is_end or not self._contrasts or self._names("functional", "SWI")
            case "magnitude":
                return not self._contrasts
            case "images":  # of Siemens' MP2RAGE
                before = self._pieces[at - 1].word if at else ""
                return before == "t1" and self._names("MP2RAGE")
            case "bias":
                return self._is_bias_field(at)
            case "field" | "ph":  # the suffix of FSL and of dcm2niix
                return bool(at) and is_end
            case _:
                return piece.role == "derived"

    def _is_bias_field(self, at: int) -> bool:
        """FSL FAST names its field so, and UCSF-PDGM a corrected scan, as in T1_bias."""
        return not at or self._pieces[at - 1].role != "contrast"

    def _names(self, *kinds: ScanKind) -> bool:
        return any(piece.kind in kinds for piece in self._contrasts)

    def _kinds(self) -> set[ScanKind]:
        """Return the kinds that the contrast words name together."""
        kinds = {piece.kind for piece in self._contrasts}
        words = {piece.word for piece in self._pieces}
        if len(kinds) > 1:
            kinds -= {"MR"} if kinds - {"MR", *_NOT_MR} else set()
        if "T2" in kinds and any(piece.role == "gradient" for piece in self._pieces):
            kinds = kinds - {"T2"} | {"T2*"}
        if "MP2RAGE" in kinds and words & {"uni", "unit1"}:
            kinds = {"T1"}
        if kinds == {"T1"} and self._has_agent():
            return {"T1ce"}
        if together := _MEANT_TOGETHER.get(frozenset(kinds)):
            return {together}
        return kinds

    def _has_agent(self) -> bool:
        """Return whether a word for a contrast agent stands there, without one that negates it."""
        for at, piece in enumerate(self._pieces):
            before = self._pieces[at - 1] if at else None
            is_negated = before is not None and before.role == "native"
            if piece.role == "agent" and not is_negated:
                return True
            if piece.word == "post" and (
                self._is_description or (before is not None and before.kind == "T1")
            ):
                return True
        return False

    def _alternatives(self) -> dict[str, ScanKind]:
        """Return words that may mean another kind than the contrast words, with that kind."""
        found: dict[str, ScanKind] = {}
        kinds = {piece.kind for piece in self._contrasts}
        for at, piece in enumerate(self._pieces):
            before = self._pieces[at - 1].kind if at else ""
            near = {before, self._pieces[at + 1].kind if at + 1 < len(self._pieces) else ""}
            match piece.word:
                case "pd" if not kinds or "T2" in near:
                    found["pd"] = "PD"
                case "pt" if not kinds:
                    found["pt"] = "PET"
                case "ir" if kinds == {"T1"} and not self._mprage():
                    found["ir"] = "PSIR"
                case "bias" if before:
                    found["bias"] = "bias field"
                case "c" if before == "T1":
                    found["c"] = "T1ce"
                case "post" if kinds == {"T1"} and not self._has_agent():
                    found["post"] = "T1ce"
                case "real" if kinds and at == len(self._pieces) - 1:
                    found["real"] = "phase"
                case "phase" | "pha" if kinds:
                    found[piece.word] = "phase"
                case "mp2rage" if not {"uni", "unit1"} & {each.word for each in self._pieces}:
                    found["mp2rage"] = "T1"
                case _ if piece.role == "part" and self._is_labelled(at):
                    found[piece.word] = "mask"
                case _:
                    pass
        return found

    def _mprage(self) -> bool:
        words = {piece.word for piece in self._contrasts}
        return bool(words & {"mprage", "fspgr", "spgr", "bravo"})


_OTHERWISE_DERIVED: dict[str, ScanKind] = {
    "bias": "bias field",
    "field": "transform",
    "images": "quantitative map",
    "ph": "phase",
}
_NOT_MR = frozenset({"CT", "CBCT", "PET", "SPECT", "ultrasound"})


def _first_contrast(pieces: Sequence[_Piece]) -> int:
    return next((at for at, piece in enumerate(pieces) if piece.role == "contrast"), 0)


def _shown(pieces: Sequence[_Piece]) -> str:
    return ", ".join(dict.fromkeys(piece.shown for piece in pieces))


def kinds_in(words: str) -> frozenset[ScanKind]:
    """Return the kinds that a model's source or target names; none if it has no known word."""
    stated = read_text(words, "", is_description=True)
    scans = [each for each in stated if each.mark != "synthetic"] or stated
    kinds = frozenset(kind for each in scans if not each.is_open for kind in each.kinds)
    return kinds or frozenset(kind for each in scans for kind in each.kinds)


def modality_named(words: str, unknown: str, several: str) -> str:
    """Return the DICOM Modality of an image described in words.

    unknown: returned if no word is known. several: returned if the words name several modalities.
    """
    found = {modality_of(kind) for kind in kinds_in(words)}
    if not found:
        return unknown
    return found.pop() if len(found) == 1 else several
