"""Which maps options ask for."""

from ....io.maps import MapMark
from ...settings import TranslateOptions
from .spread_figures import spread_marks


def maps_asked_for(options: TranslateOptions) -> tuple[MapMark, ...]:
    """The maps that each study has beside its result, in the order in which they are made."""
    spread = spread_marks(options.spread) if options.spread else ()
    check = options.cycle_check
    return (*spread, cycle_mark(check.sha256)) if check and check.has_map else spread


def cycle_mark(back: str) -> MapMark:
    """Of the cycle error of each voxel; back: hash of the file of the model that leads back."""
    return MapMark("cycle", "cycle error", back)
