"""Weighing of statements about a scan against the kinds of images that a model takes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .statement import Statement, Weight
from .texts import kinds_in
from .words import ANATOMICAL_MR, ScanKind, modality_of


@lru_cache(64)
def kinds_taken(source: str) -> frozenset[ScanKind]:
    """Return the kinds that a model takes without a note. source: its contrast, in words."""
    kinds = kinds_in(source)
    return kinds | ANATOMICAL_MR if "MR" in kinds else kinds


@dataclass(frozen=True, slots=True)
class Weighed:
    """Outcome of the weighing.

    against: statement because of which the scan is not taken; None if it is. doubts: weaker ones
    that disagree, or leave the kind open. is_shown: whether something states a kind that is taken.
    """

    against: Statement | None = None
    doubts: tuple[Statement, ...] = ()
    is_shown: bool = False


def weigh(
    stated: Iterable[Statement], taken: frozenset[ScanKind], *, is_confirmed: bool = False
) -> Weighed:
    """Weigh statements by this table, the first row that fits.

    ========================================================  ================
    statement                                                 outcome
    ========================================================  ================
    mask, map or synthetic image                              not taken
    Modality of another kind                                  not taken
    of the greatest weight: another kind                      not taken
    of the greatest weight: open between a kind and others    taken, doubtful
    of the greatest weight: a kind that is taken              taken
    of less weight: another kind                              taken, doubtful
    none of a kind                                            taken, not shown
    ========================================================  ================

    taken: kinds that the model takes. is_confirmed: whether the user chose the scan by its
    description, so that words only cause doubts.
    """
    every = [each for each in stated if not (each.mark == "synthetic" and each.kinds <= taken)]
    if marked := next((each for each in every if each.mark and not each.kinds <= taken), None):
        return Weighed(against=marked)
    coarse = [each for each in every if each.is_coarse]
    standard = [each for each in coarse if each.weight == Weight.STANDARD]
    if other := next((each for each in standard if _is_elsewhere(each, taken)), None):
        return Weighed(against=other)
    fine = [each for each in every if not each.is_coarse and not _is_unsure(each)]
    possible = [each for each in fine if not _contradicts_modality(each, standard)]
    top = max((each.weight for each in possible), default=Weight.FOLDER)
    deciding = [each for each in possible if each.weight == top]
    against = [each for each in deciding if _is_against(each, taken)]
    if not deciding:
        against = [each for each in coarse if _is_elsewhere(each, taken)]
    if against and not (is_confirmed and against[0].weight == Weight.WORDS):
        return Weighed(against=against[0])
    shown = [each for each in deciding or coarse if each.kinds <= taken]
    unsure = [each for each in every if _is_unsure(each)] if not shown else []
    others = [each for each in fine if not each.kinds <= taken or _is_mixed(each, taken)]
    if deciding:
        others += [each for each in coarse if _is_elsewhere(each, taken)]
    open_ = [each for each in unsure if each.kinds & taken]
    return Weighed(None, (*others, *open_), bool(shown))


def _is_unsure(stated: Statement) -> bool:
    """Return whether it may state nothing at all, as PD, which may be a disease."""
    return stated.is_open and len(stated.kinds) == 1


def _is_mixed(stated: Statement, taken: frozenset[ScanKind]) -> bool:
    """Return whether it names several contrasts of MR for a model that takes any of them."""
    return "MR" in taken and len(stated.kinds) > 1 and not stated.is_open


def _is_against(stated: Statement, taken: frozenset[ScanKind]) -> bool:
    if stated.is_open:
        return not stated.kinds & taken
    return not stated.kinds <= taken


def _is_elsewhere(stated: Statement, taken: frozenset[ScanKind]) -> bool:
    """Return whether a modality is none of those of the kinds that are taken."""
    return not {modality_of(each) for each in stated.kinds} & {modality_of(each) for each in taken}


def _contradicts_modality(stated: Statement, modalities: Sequence[Statement]) -> bool:
    """Return whether words name a kind of another modality than the header states."""
    return stated.weight < Weight.STANDARD and any(
        _is_elsewhere(stated, each.kinds) for each in modalities
    )
