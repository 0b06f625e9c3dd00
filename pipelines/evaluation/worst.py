"""The pictures of the worst studies so far, and of no more of them than are shown."""

from dataclasses import replace
from heapq import heappush, heappushpop

from .report import PairRow


class Worst:
    """Keeps the pictures of those rows with the largest mean absolute error."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, str, bytes]] = []

    def take(self, row: PairRow) -> None:
        """Keep the row's picture if it is among the worst."""
        if not row.figures or not row.picture or not self._most:
            return
        entry = row.figures.mae, row.name, row.picture
        if len(self._kept) < self._most:
            heappush(self._kept, entry)
        else:
            heappushpop(self._kept, entry)

    def pictured(self, row: PairRow) -> PairRow:
        """The row with its picture, if that was kept."""
        picture = next((picture for _, name, picture in self._kept if name == row.name), None)
        return replace(row, picture=picture)
