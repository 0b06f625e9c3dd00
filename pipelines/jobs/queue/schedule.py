"""Scheduling classes, and times of day at which jobs may start, by the worker's wall clock."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Literal, Self, TypeAlias, get_args

from ...errors import SettingsError

NIGHT = "19:00-07:00"
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


Priority: TypeAlias = Literal["urgent", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)

ALONE, WITH_OTHERS, BEHIND = 1, 2, 3
"""Turns among the jobs of a class: one that may have crashed a worker goes first, and alone; a
deferred one goes last, as others may fit onto a disk that is too full for it.
"""


@dataclass(frozen=True, slots=True)
class SchedulingClass:
    """Jobs of one priority that may start in one window of the day; "" is any time."""

    priority: Priority
    window: str = ""

    def __str__(self) -> str:
        return f"{self.priority} {self.window}".rstrip()

    @classmethod
    def parse(cls, text: str) -> "SchedulingClass":
        """Return the class of a name that `str` made; any other name counts as normal."""
        word, _, window = text.partition(" ")
        known: dict[str, Priority] = {priority: priority for priority in PRIORITIES}
        return cls(known.get(word, "normal"), window)


@dataclass(frozen=True, slots=True)
class StartWindow:
    """Window from `opens` up to `closes`, over midnight if that comes first.

    Evaluated from the wall clock each time, so that neither a restart nor a change of the
    clock or of daylight saving leaves it open or closed.
    """

    opens: time
    closes: time

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HH:MM-HH:MM` or `night`. Raises SettingsError."""
        found = _WINDOW.fullmatch(NIGHT if text == "night" else text)
        if found is None or found[1] + found[2] == found[3] + found[4]:
            raise SettingsError(
                f"{text!r} is not a time window such as 19:00-07:00; give two different times, or "
                "night."
            )
        opens_hour, opens_minute, closes_hour, closes_minute = map(int, found.groups())
        return cls(time(opens_hour, opens_minute), time(closes_hour, closes_minute))

    def __str__(self) -> str:
        return f"{self.opens:%H:%M}-{self.closes:%H:%M}"

    def is_open(self, now: datetime) -> bool:
        """Return whether a job may start at `now`, in local time."""
        clock = now.time().replace(tzinfo=None)
        if self.opens < self.closes:
            return self.opens <= clock < self.closes
        return clock >= self.opens or clock < self.closes

    def first_open(self, start: datetime) -> datetime:
        """Return the first moment from `start` on, in local time, at which a job may start."""
        if self.is_open(start):
            return start
        opening = datetime.combine(start.date(), self.opens)
        return opening if opening > start else opening + timedelta(days=1)


def parse_since(text: str, now: datetime) -> datetime:
    """Parse `HH:MM` (the last such time), `yesterday` (24 hours ago) or ISO 8601, local unless it
    names a zone; a time that the clocks skip is the end of the gap.

    now: with a zone. Raises SettingsError for other text, or a time in the future.
    """
    if text == "yesterday":
        return now - timedelta(days=1)
    try:
        clock = time.fromisoformat(text) if len(text) <= len("HH:MM:SS") else None
        moment = datetime.fromisoformat(text) if clock is None else None
    except ValueError as error:
        raise SettingsError(
            f"{text!r} is not a time such as 18:00, yesterday or 2026-12-24T18:00."
        ) from error
    if moment is None:
        today = datetime.combine(now.date(), clock or time())
        days = today, today - timedelta(days=1)
    else:
        days = (moment,)
    for day in days:
        if (past := _moment(day)) <= now:
            return past
    raise SettingsError(f"{text} is in the future; give a time in the past.")


def parse_time(text: str, now: datetime) -> datetime:
    """Parse `HH:MM` (the next such time) or ISO 8601, local unless it names a zone; a time that the
    clocks skip is the end of the gap.

    now: with a zone. Raises SettingsError for other text, or a time in the past.
    """
    try:
        clock = time.fromisoformat(text) if len(text) <= len("HH:MM:SS") else None
        moment = datetime.fromisoformat(text) if clock is None else None
    except ValueError as error:
        raise SettingsError(f"{text!r} is not a time such as 19:30 or 2026-12-24T19:30.") from error
    if moment is None:
        today = datetime.combine(now.date(), clock or time())
        days = today, today + timedelta(days=1)
    else:
        days = (moment,)
    for day in days:
        for fold in (0, 1):  # as daylight saving ends, an hour comes twice
            coming = _moment(day.replace(fold=fold))
            if coming > now:
                return coming
    raise SettingsError(f"{text} is in the past; give a time in the future.")


def _moment(day: datetime) -> datetime:
    """Return the moment of a local time; if clocks skip it, the end of the gap, as cron does."""
    moment = day.astimezone()
    if day.tzinfo or moment.replace(tzinfo=None) == day:
        return moment
    moment = min(day.replace(fold=fold, second=0).astimezone() for fold in (0, 1))
    before = moment.utcoffset()
    while moment.utcoffset() == before:
        moment = (moment + timedelta(minutes=1)).astimezone()
    return moment
