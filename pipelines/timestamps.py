"""Timestamps as all JSON of this program has them."""

from datetime import datetime


def iso_time(moment: datetime | float) -> str:
    """Return ISO 8601 in local time to the second, with its offset: 2026-11-22T08:30:00+00:00.

    moment: a number counts seconds since 1970.
    """
    if not isinstance(moment, datetime):
        moment = datetime.fromtimestamp(moment)
    return moment.astimezone().isoformat(timespec="seconds")
