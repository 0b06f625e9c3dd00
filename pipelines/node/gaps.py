"""What a study lacks: images that were refused, and the end of a transfer that broke off.

Empty files beside the study's objects keep it over a restart: HASH.refused for an image, until it
is taken, and `transfer.open` while an association brings objects of the study, and after one that
broke off until a later one ends in order. `released` lets the study go as it is.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .study_name import StudyName

RELEASED = "released"
_REFUSED, _OPEN = ".refused", "transfer.open"
_MOST_REFUSED = 10_000
"""Studies with images that were refused; of more, which no archive sends, they are forgotten."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What a study lacks, as far as is known; false if that is nothing.

    refused: images that were not taken. broke_off: whether its last transfer did not end in order.
    """

    refused: int = 0
    broke_off: bool = False

    def __bool__(self) -> bool:
        return bool(self.refused or self.broke_off)

    def figures(self, images: int) -> str:
        """The gap in words; images: that the study has."""
        parts = [f"{_images(images)} of the study received"]
        if self.refused:
            parts.append(f"{_images(self.refused)} not taken")
        if self.broke_off:
            parts.append("the transfer broke off")
        return ", ".join(parts)

    def remark(self, images: int) -> str:
        """What a result says of its source; empty if nothing is missing."""
        if not self:
            return ""
        verb = "was" if self.refused else "may be"
        return f"the source {verb} incomplete: {self.figures(images)}"


def _images(count: int) -> str:
    return f"{count} image{'' if count == 1 else 's'}"


class Gaps:
    """The gaps of all studies of an inbox, whose lock its callers hold.

    folder: of a study. studies: those in the inbox when it is opened.
    """

    def __init__(self, folder: Callable[[StudyName], Path], studies: Iterable[StudyName]) -> None:
        self._folder = folder
        self._steps = itertools.count(1)
        self._open = Counter[StudyName]()
        self._refused: dict[StudyName, set[str]] = {}
        self._broke_off: dict[StudyName, int] = {}
        for study in studies:
            names = {marker.stem for marker in folder(study).glob(f"*{_REFUSED}")}
            if names:
                self._refused[study] = names
            if (folder(study) / _OPEN).exists():
                self._broke_off[study] = 0

    def of(self, study: StudyName) -> Gap:
        """The gap of one study."""
        return Gap(len(self._refused.get(study, ())), study in self._broke_off)

    def keep(self, study: StudyName) -> None:
        """Store the gap on disk, if there is something of the study."""
        for name in self._refused.get(study, ()):
            self._touch(study, f"{name}{_REFUSED}")
        if self._open[study] or study in self._broke_off:
            self._touch(study, _OPEN)

    def begin(self, study: StudyName) -> int:
        """Note that an association brings a study; the number is for `end`."""
        self._open[study] += 1
        self._touch(study, _OPEN)
        return next(self._steps)

    def end(self, study: StudyName, begun: int, *, broke_off: bool) -> None:
        """Note that an association brings no more of a study.

        One that ends in order mends the breaks of others before it had begun.
        """
        self._open[study] -= 1
        if broke_off and self._folder(study).exists():
            self._broke_off[study] = next(self._steps)
            self.hold_again(study)
        elif self._broke_off.get(study, begun) < begun:
            del self._broke_off[study]
        if not self._open[study]:
            del self._open[study]
            if study not in self._broke_off:
                self._unlink(study, _OPEN)

    def complete(self, study: StudyName) -> None:
        """Take a sender's word that its transfers of a study are complete."""
        self._broke_off.pop(study, None)
        if study not in self._open:
            self._unlink(study, _OPEN)

    def refuse(self, study: StudyName, name: str) -> None:
        """Note that an image was not taken."""
        if study in self._refused or len(self._refused) < _MOST_REFUSED:
            names = self._refused.setdefault(study, set())
            if name not in names:
                names.add(name)
                self.hold_again(study)
                self._touch(study, f"{name}{_REFUSED}")

    def taken(self, route: str, name: str) -> frozenset[StudyName]:
        """Forget that an image was refused, as it is here now; the studies that lacked it."""
        found = [
            study
            for study, names in self._refused.items()
            if study.route == route and name in names
        ]
        for study in found:
            self._refused[study].discard(name)
            if not self._refused[study]:
                del self._refused[study]
            self._unlink(study, f"{name}{_REFUSED}")
        return frozenset(found)

    def is_released(self, study: StudyName) -> bool:
        """Whether somebody let the study go as it is."""
        return (self._folder(study) / RELEASED).exists()

    def hold_again(self, study: StudyName) -> None:
        """Forget that it was released, as it has changed since."""
        self._unlink(study, RELEASED)

    def forget(self, study: StudyName) -> None:
        """Forget a study that leaves the inbox."""
        self._refused.pop(study, None)
        self._broke_off.pop(study, None)

    def _touch(self, study: StudyName, name: str) -> None:
        with suppress(OSError):  # the first object comes later, or the disk is full
            (self._folder(study) / name).touch(mode=0o600)

    def _unlink(self, study: StudyName, name: str) -> None:
        with suppress(OSError):
            (self._folder(study) / name).unlink()
