"""Which maps options ask for."""

from ....io.maps import MapMark
from ...settings import TranslateOptions


def maps_asked_for(options: TranslateOptions) -> tuple[MapMark, ...]:
    """The maps that each study has beside its result, in the order in which they are made."""
    del options  # none asks for any yet
    return ()
