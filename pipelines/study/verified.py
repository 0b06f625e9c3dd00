"""What a second computation of some tiles came to, as a study's row holds it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verified:
    """places: parts of the result that were compared; tiles: those computed again for them.

    error: relative L2, of the place that is worst by what is allowed there. allowed: what precision
    and voxel type explain. seconds: what it took.
    """

    places: int
    tiles: int
    error: float
    allowed: float
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the result is what the second computation gives, but for rounding."""
        return self.error <= self.allowed
