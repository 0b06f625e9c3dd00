"""Names of the batches that arriving studies join: one batch per night, or by a pattern."""

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Self

from ...errors import SettingsError

_FIELD = re.compile(r"%(.?)")
_OF_DATES = frozenset("YymdjaAbBGVuwUW%")
_NOON = timedelta(hours=12)


def night_of(moment: datetime) -> date:
    """Return the date of the evening to which a moment belongs; nights change at noon."""
    return (moment - _NOON).date()


@dataclass(frozen=True, slots=True)
class BatchPattern:
    """Pattern of batch names; one without date fields makes a batch for each night.

    text: with date fields of `strftime`; "" leaves batches without a name.
    """

    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Check a pattern. Raises SettingsError."""
        if wrong := [found[0] for found in _FIELD.finditer(text) if found[1] not in _OF_DATES]:
            raise SettingsError(
                f"{wrong[0]!r} is not a date field of strftime; use fields such as %Y, %m, %d, %G "
                "and "
                "%V, and write a percent sign as %%."
            )
        return cls(text)

    def name(self, moment: datetime) -> str:
        """Return the name of the batch that studies of a moment join."""
        return night_of(moment).strftime(self.text)

    def period(self, moment: datetime) -> str:
        """Return what two moments have in common if their studies join the same batch."""
        has_dates = any(found[1] != "%" for found in _FIELD.finditer(self.text))
        return self.name(moment) if has_dates else f"{night_of(moment)} {self.text}"


EACH_NIGHT = BatchPattern()
"""Pattern of unnamed batches, one per night."""
