"""Which maps options ask for."""

from ....io.maps import MapMark
from ...settings import TranslateOptions
from .spread_figures import spread_marks


def maps_asked_for(options: TranslateOptions) -> tuple[MapMark, ...]:
    """The maps that each study has beside its result, in the order in which they are made."""
    return spread_marks(options.spread) if options.spread else ()
