"""Source of studies over DIMSE: found by C-FIND, and moved to the route's AE title by C-MOVE.

The objects arrive on associations of their own, which `Reception` admits for requested studies. A
part of a study counts as fetched only if no sub-operation failed and the inbox has each object that
C-FIND listed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...io.dicom_network.commands import Refusal
from ...io.dicom_network.errors import NetworkError, RefusedError
from ...io.dicom_network.negotiation import IMAGES
from ...io.dicom_network.objects import ListedObject
from ...io.dicom_network.query_keys import MODALITIES, alternatives, is_match, is_universal
from ...io.dicom_network.querying import Identifier, Query, QueryLevel, value_of
from .inbox import Inbox
from .reception import RouteSession

LONGEST_SILENCE = 600.0
"""Seconds without a response to C-MOVE, and without an object of the study, after which it counts
as lost: responses before the last are optional, and an archive may read from tape first.
"""
MOST_UIDS = 256
"""Maximum number of objects of one C-MOVE at the level of images."""
_MODALITIES = ("CT", "MR", "PT", "OT", "")
"""Modalities of series with images, if the source does not list the classes of objects."""
_STUDY, _SERIES, _INSTANCE = "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"


class DimseSource:
    """Open association with a source, a `SourceLink`.

    route: AE title to which the objects are moved. is_open: returns whether the node still fetches.
    """

    def __init__(self, query: Query, inbox: Inbox, route: str, is_open: Callable[[], bool]) -> None:
        self._query, self._inbox, self._route, self._is_open = query, inbox, route, is_open
        self._listed: dict[str, Mapping[str, Identifier]] = {}
        self._sizes: dict[tuple[str, str], int] = {}

    def studies(self, filters: Mapping[str, str]) -> list[str]:
        """Return the UIDs of the studies that match, whichever keys the source supports.

        filters: values by keyword, with DICOM's wildcards and ranges.
        """
        sent = dict(filters)
        if len(alternatives(sent.get(MODALITIES, ""))) > 1:
            sent[MODALITIES] = ""  # few peers match a list
        return [
            study
            for study, row in self._query.find("STUDY", sent).items()
            if all(self._is_match(study, row, *each) for each in filters.items())
        ]

    def objects(self, study: str) -> list[ListedObject]:
        """Return the images of a study. Other objects are not listed, and not requested."""
        found: list[ListedObject] = []
        for series, about in self._series(study).items():
            rows = self._query.find("IMAGE", {_STUDY: study, _SERIES: series, "SOPClassUID": ""})
            self._sizes[study, series] = len(rows)
            found += (
                ListedObject(study, series, instance)
                for instance, row in rows.items()
                if _is_image(value_of(row, "SOPClassUID"), value_of(about, "Modality"))
            )
        return found

    def parts(self, lacking: Iterable[ListedObject]) -> Iterator[Sequence[ListedObject]]:
        """Yield what each C-MOVE requests: a series, or the objects of one that is here in part."""
        by_series = defaultdict[str, list[ListedObject]](list)
        for one in lacking:
            by_series[one.series].append(one)
        for objects in by_series.values():
            step = len(objects) if self._is_whole(objects) else MOST_UIDS
            for start in range(0, len(objects), step):
                yield objects[start : start + step]

    def fetch(self, session: RouteSession, part: Sequence[ListedObject]) -> bool:
        """Have a part moved here; return whether there was space for it.

        Raises RefusedError if it did not arrive as a whole, else NetworkError or OSError.
        """
        first = part[0]
        space = session.place()
        if isinstance(space, Refusal):
            session.refused(first.instance, first.study, space.reason)
            return False
        asked = {_STUDY: first.study, _SERIES: first.series}
        level: QueryLevel = "SERIES"
        if not self._is_whole(part):
            level, asked[_INSTANCE] = "IMAGE", "\\".join(one.instance for one in part)
        patience = _Patience(lambda: session.changed_at(first.study), self._is_open)
        moved = self._query.move(level, asked, self._route, patience.waits)
        here = self._inbox.holding(self._route, {one.instance for one in part})
        if not moved.is_complete or len(here) < len(part):
            lacking = len(part) - len(here)
            raise RefusedError(f"{lacking} of {len(part)} objects did not arrive; {moved.words}")
        return True

    def _is_whole(self, part: Sequence[ListedObject]) -> bool:
        """Whether a part is all that the source lists of a series."""
        return len(part) == self._sizes[part[0].study, part[0].series]

    def _series(self, study: str) -> Mapping[str, Identifier]:
        """Return the series of a study by their UIDs, after one search."""
        if study not in self._listed:
            asked = {_STUDY: study, "Modality": ""}
            self._listed[study] = self._query.find("SERIES", asked)
        return self._listed[study]

    def _is_match(self, study: str, row: Identifier, keyword: str, pattern: str) -> bool:
        """Whether a study matches a key, which the source may have ignored."""
        if is_universal(pattern):
            return True
        if keyword == MODALITIES:
            values = row.get(MODALITIES) or [
                value_of(series, "Modality") for series in self._series(study).values()
            ]
            return any(is_match(keyword, pattern, value) for value in values)
        if keyword not in row:
            raise NetworkError(f"it does not return {keyword}, so source-query cannot select by it")
        return is_match(keyword, pattern, value_of(row, keyword))


def _is_image(sop_class: str, modality: str) -> bool:
    """Whether the node accepts a listed object; if its class is unknown, its series decides."""
    return sop_class in IMAGES if sop_class else modality in _MODALITIES


class _Patience:
    """Limit of the wait for a response to C-MOVE.

    changed_at: returns the time of the last object of the study. is_open: returns whether the node
    still fetches.
    """

    def __init__(self, changed_at: Callable[[], float | None], is_open: Callable[[], bool]) -> None:
        self._changed_at, self._is_open = changed_at, is_open
        self._last = changed_at()
        self._since = time.monotonic()

    def waits(self) -> bool:
        """Return whether to wait on."""
        if (last := self._changed_at()) != self._last:
            self._last, self._since = last, time.monotonic()
        return self._is_open() and time.monotonic() - self._since < LONGEST_SILENCE
