"""Agreement of readers over the studies that they marked: percentages and kappas.

Cohen's kappa, unweighted: J. Cohen, A coefficient of agreement for nominal scales, Educational and
Psychological Measurement 20 (1960) 37-46. Fleiss' kappa: J. L. Fleiss, Measuring nominal scale
agreement among many raters, Psychological Bulletin 76 (1971) 378-382. Intervals: percentiles of a
bootstrap over studies; B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap (1993),
chapter 13.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .review import GRADES, Grade, Mark

SEED = 1960
"""Seed of the bootstrap, so that the same marks have the same intervals."""

SAMPLES = 5000
FEWEST_STUDIES = 10
"""Fewest studies with an interval; that of fewer would be too narrow."""

_PERCENTILES = (2.5, 97.5)
_LEAST_DEFINED = 0.95
"""Least part of the samples in which a figure must be defined to have an interval."""

_Counts = npt.NDArray[np.int64]
_Figures = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader with the marks of one file.

    name: as in the file; with that file if several have the name. grades: marks by study.
    """

    name: str
    grades: Mapping[str, Grade]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Figure of some marks.

    value: None if the marks do not define it. interval: of 95 %; None if there are too few studies.
    """

    value: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of some readers over the studies that all of them marked.

    readers: their names. studies: number. alike: number with the same mark by all. share: of these.
    kappa: Cohen's of two readers, Fleiss' of more.
    """

    readers: tuple[str, ...]
    studies: int
    alike: int
    share: Estimate
    kappa: Estimate


def readers_of(files: Sequence[tuple[Path, Sequence[Mark]]]) -> tuple[Reader, ...]:
    """Return the readers who marked studies in some files.

    Marks of one name in several files are kept apart: they may be of two people with one login.
    """
    found: dict[tuple[str, Path], dict[str, Grade]] = {}
    for file, marks in files:
        for mark in marks:
            if mark.mark:
                found.setdefault((mark.reader, file), {})[mark.study] = mark.mark
    names = [name for name, _ in found]

    def label(name: str, file: Path) -> str:
        return f"{name or 'unnamed'} ({file})" if names.count(name) > 1 else name or "unnamed"

    return tuple(Reader(label(*key), grades) for key, grades in found.items())


def agreements(readers: Sequence[Reader]) -> tuple[Agreement, ...]:
    """Return the agreement of each pair of readers, and then, of more than two, that of all."""
    groups = [*combinations(readers, 2)]
    return tuple(map(agreement, [*groups, readers] if len(readers) > 2 else groups))


def unlike(readers: Sequence[Reader]) -> dict[str, dict[str, Grade]]:
    """Return the studies with different marks: the mark of each reader, by study."""
    studies = sorted({study for reader in readers for study in reader.grades})
    marks: dict[str, dict[str, Grade]] = {
        study: {one.name: one.grades[study] for one in readers if study in one.grades}
        for study in studies
    }
    return {study: found for study, found in marks.items() if len(set(found.values())) > 1}


def agreement(readers: Sequence[Reader]) -> Agreement:
    """Return the agreement of two readers or more."""
    first, *others = readers
    common = [name for name in first.grades if all(name in one.grades for one in others)]
    marks = [tuple(GRADES.index(one.grades[name]) for one in readers) for name in sorted(common)]
    names = tuple(reader.name for reader in readers)
    if not marks:
        none = Estimate(None, None)
        return Agreement(names, 0, 0, none, none)
    patterns, counts = np.unique(np.array(marks), axis=0, return_counts=True)
    drawn = _samples(counts)
    kappa = _cohen if len(readers) == 2 else _fleiss
    alike = int(counts[_is_alike(patterns)].sum())
    return Agreement(
        names,
        len(marks),
        alike,
        _estimate(_share_alike(patterns, counts[None])[0], _share_alike(patterns, drawn)),
        _estimate(kappa(patterns, counts[None])[0], kappa(patterns, drawn)),
    )


def _samples(counts: _Counts) -> _Counts:
    """Return how often each pattern of marks is drawn in each sample of the studies."""
    total = int(counts.sum())
    samples = SAMPLES if total >= FEWEST_STUDIES else 0
    return np.random.default_rng(SEED).multinomial(total, counts / total, samples)


def _estimate(value: float, samples: _Figures) -> Estimate:
    if np.isnan(value):
        return Estimate(None, None)
    defined = samples[np.isfinite(samples)]
    if not len(samples) or len(defined) < _LEAST_DEFINED * len(samples):
        return Estimate(float(value), None)
    low, high = np.percentile(defined, _PERCENTILES)
    return Estimate(float(value), (float(low), float(high)))


def _is_alike(patterns: _Counts) -> npt.NDArray[np.bool_]:
    return (patterns == patterns[:, :1]).all(axis=1)


def _share_alike(patterns: _Counts, samples: _Counts) -> _Figures:
    return samples @ _is_alike(patterns) / samples.sum(axis=1)


def _cohen(patterns: _Counts, samples: _Counts) -> _Figures:
    """Return Cohen's kappa of each sample of two readers' marks."""
    first, second = (
        samples @ (patterns[:, [reader]] == np.arange(len(GRADES))) for reader in (0, 1)
    )
    by_chance = (first * second).sum(axis=1) / samples.sum(axis=1) ** 2
    return _beyond_chance(_share_alike(patterns, samples), by_chance)


def _fleiss(patterns: _Counts, samples: _Counts) -> _Figures:
    """Return Fleiss' kappa of each sample of the marks of several readers."""
    readers = patterns.shape[1]
    votes = (patterns[:, :, None] == np.arange(len(GRADES))).sum(axis=1)
    pairs = (votes * (votes - 1)).sum(axis=1) / (readers * (readers - 1))
    total = samples.sum(axis=1)
    shares = samples @ votes / (total * readers)[:, None]
    return _beyond_chance(samples @ pairs / total, (shares**2).sum(axis=1))


def _beyond_chance(observed: _Figures, by_chance: _Figures) -> _Figures:
    """Return kappa; NaN where chance alone explains full agreement."""
    room = 1 - by_chance
    return np.divide(observed - by_chance, room, np.full_like(observed, np.nan), where=room > 1e-12)
