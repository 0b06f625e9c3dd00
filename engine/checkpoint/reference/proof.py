"""What a reference proves of a checkpoint: a patch, and what the training code made of it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from ...errors import CheckpointError
from ...model.model_card import Established
from ...network.layers import FloatArray
from ..recognise.established import check_meaning, differences_in_words, tell_reading
from ..recognise.evidence import Direction, Evidence, setting
from ..recognise.reading import Reading
from ..recognise.recognition import Recognised, recognise
from .search import FittingReading, ReferenceSearch

_COMPUTED = "only this computes the reference"


def resolve(
    recognised: Recognised,
    reference_input: FloatArray,
    reference_output: FloatArray,
    clock: Callable[[], float] = time.monotonic,
) -> Recognised:
    """The same checkpoint read as the reference proves it; both arrays are [N, C, D, H, W].

    clock: tells seconds. Raises CheckpointError if no reading computes the reference, if several do
    and differ on this patch, or if one does that contradicts what the user says.
    """
    searches: list[ReferenceSearch] = []
    for candidate in _directions(recognised):
        search = ReferenceSearch(candidate, reference_input, reference_output, clock)
        searches.append(search)
        if found := search.run(candidate.choices.said()):
            return _proven(candidate, found)
    for search in searches:
        if search.said and (found := search.run({})):
            raise CheckpointError(_contradicted(search, found.best.reading))
    raise CheckpointError(min(searches, key=lambda search: search.closest.error).failure())


def _directions(recognised: Recognised) -> Iterator[Recognised]:
    """The checkpoint's generators that may be meant."""
    asked = [q for q in recognised.undecided if q.field == "direction"]
    if not asked:
        yield recognised
        return
    for direction in asked[0].answers:
        chosen: Direction = "AtoB" if direction == "AtoB" else "BtoA"
        found = recognise(recognised.checkpoint, replace(recognised.choices, direction=chosen))
        told = tuple(
            replace(fact, reason=_COMPUTED) if fact.subject == "direction" else fact
            for fact in found.told
        )
        yield replace(found, told=told)


def _proven(recognised: Recognised, found: FittingReading) -> Recognised:
    """The recognised generator with its reading told by the reference."""
    match, reading = recognised.match, found.best.reading
    if recognised.choices.code and (wrong := _other_than(recognised, reading)):
        raise CheckpointError(
            f"The reference contradicts setting code={recognised.choices.code}: it was computed "
            f"with {wrong}; leave setting code out."
        )
    evidence = Evidence(recognised.choices)
    check_meaning(match, evidence)
    tell_reading(match, reading, evidence, _COMPUTED)
    distance = f"{found.best.error:.1g} away (relative L2)"
    if found.second:
        other = differences_in_words(match, found.second.reading, reading)
        distance += f"; the next best reading ({other}) is {found.second.error:.2g} away"
    evidence.tell("reference", "computed", distance)
    kept = [fact for fact in recognised.told if not fact.reason.startswith("so computes")]
    return replace(
        recognised,
        network=match.network(reading),
        reading=reading,
        established=Established("reference"),
        told=(*kept, *evidence.told),
        defaulted=tuple(fact for fact in recognised.defaulted if fact.subject == "direction"),
        undecided=(),
    )


def _other_than(recognised: Recognised, reading: Reading) -> str:
    """What of a reading is not as the named code computes; statistics may be asked for."""
    expected = recognised.reading
    if recognised.undecided:
        expected = replace(expected, norm=reading.norm)
    return differences_in_words(recognised.match, reading, expected) if reading != expected else ""


def _contradicted(search: ReferenceSearch, reading: Reading) -> str:
    """The error of what the user says and the reference shows to be wrong."""
    said = dict(search.said)
    wrong: list[str] = []
    right: list[str] = []
    for name, value in said.items():
        shown = (
            ("stored" if reading.norm == "stored" else "patch")
            if name == "norm_statistics"
            else getattr(reading, name)
        )
        if shown != value:
            wrong.append(f"{setting(name)}={value}")
            right.append(f"{setting(name)}={shown}")
    return f"The reference contradicts {' '.join(wrong)}: it was computed with {' '.join(right)}."
