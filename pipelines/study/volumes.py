"""The volumes of a study over time, which are translated one by one into one result."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from re import sub

import numpy as np

from ...io.reading import read, read_each
from ...io.volume import Empty, Study, Volume
from ..settings import TranslateOptions
from .plan import StudyPlan
from .row_figures import Verified
from .unread import first_index, look_at_study


class StudyVolumes:
    """Reads the scans of a study volume by volume, where every volume is asked for.

    Files stay open from the first volume to the last, so that packed ones are unpacked once. No
    volume is held here. One thread at a time may call.

    count: how many volumes there are; 1 where one is asked for. number: of the volume that was read
    last, counted from 0. unchanged: entered whenever something is read.
    """

    def __init__(
        self,
        study: Study,
        options: TranslateOptions,
        empty: Empty = np.empty,
        unchanged: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Raises ScanError and PreparationError."""
        self.count = look_at_study(study, options).count if options.every_volume else 1
        self.number = -1
        self.unchanged = unchanged
        reads = read_each if self.is_series else partial(_alone, options)
        self._each = [reads(scan, empty) for scan in study.channels]

    @property
    def is_series(self) -> bool:
        """Whether there are several volumes."""
        return self.count > 1

    @property
    def at_hand(self) -> str:
        """The volume that was read last, in words; empty where there is but one."""
        return f"volume {self.number} of its {self.count}" if self.is_series else ""

    @property
    def left(self) -> int:
        """How many volumes are still to be read."""
        return self.count - 1 - self.number

    def next(self) -> Iterator[Volume]:
        """The next volume of each scan; raises what `read` raises."""
        self.number += 1
        return map(next, self._each)

    def notes_of(self, scan: Volume, plan: StudyPlan) -> tuple[str, ...]:
        """A note where later volumes may need another voxel type than the first, which decides."""
        open_types = [kind for kind in plan.results if kind.voxel_type is None]
        is_open = any(kind.asked or scan.voxels.dtype.kind != "f" for kind in open_types)
        if self.number or not (self.is_series and is_open):
            return ()
        return (
            "the whole result is stored in the voxel type that this volume needs, which depends on "
            "what the network makes of it; one that needs another fails, and float32 holds all",
        )

    def close(self) -> None:
        """Close the files."""
        self._each.clear()


def _alone(options: TranslateOptions, scan: Study, empty: Empty) -> Iterator[Volume]:
    yield read(scan, first_index(scan, options), empty)


def notes_of_volumes(noted: Sequence[tuple[int, str]], count: int) -> Iterator[str]:
    """Notes on volumes of a series, with the number of each, as notes on all `count` of them.

    What is said of several volumes, but for its figures, is said once.
    """
    alike: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, note in dict.fromkeys(noted):
        alike[sub(r"[\d.]+", "#", note)].append((number, note))
    for notes in alike.values():
        numbers = {number for number, _ in notes}
        (first, text), *_ = notes
        if len(numbers) == count and len({note for _, note in notes}) == 1:
            yield text
        elif len(numbers) == 1:
            yield f"volume {first}: {text}"
        else:
            yield f"volume {first}: {text}; likewise {len(numbers) - 1} more of {count} volumes"


def verified_together(before: Verified | None, verified: Verified) -> Verified:
    """What second computations of volumes came to: the worst error, and all that was compared."""
    if before is None:
        return verified
    worst = max((before, verified), key=lambda one: one.error / one.allowed)
    return Verified(
        places=before.places + verified.places,
        tiles=before.tiles + verified.tiles,
        error=worst.error,
        allowed=worst.allowed,
        seconds=before.seconds + verified.seconds,
    )
