"""The seam score as a study's row holds it; how it is measured stands in `seams`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeamScore:
    """Scores along the model's D, H and W: 1.0 where no seam shows, above it where one does.

    None along an axis without borders, or without any steps to compare.

    axes: those scores.
    """

    axes: tuple[float | None, float | None, float | None]

    @property
    def worst(self) -> float | None:
        """The largest of the three; None if one tile covers the volume."""
        return max((score for score in self.axes if score is not None), default=None)
