"""Requests to end all studies of a pipeline, or one of them."""

from .concurrency import StoppedError


class StudyCancelledError(Exception):
    """Raised in a study that was cancelled, to end it where it is."""


class StopRequests:
    """Requests to end studies, which each study checks at each patch and stage.

    Any thread may call, also one that is interrupted meanwhile.
    """

    def __init__(self) -> None:
        self._is_stopped = False
        self._cancelled: set[str] = set()

    @property
    def is_stopped(self) -> bool:
        """Whether all studies are to end that the network has not finished."""
        return self._is_stopped

    def stop(self) -> None:
        """End all studies that the network has not finished."""
        self._is_stopped = True

    def cancel(self, study: str) -> None:
        """End one study, by its name."""
        self._cancelled.add(study)

    def accept(self, study: str) -> None:
        """Accept a study again that was cancelled earlier."""
        self._cancelled.discard(study)

    def check(self, study: str) -> None:
        """Raise StudyCancelledError or StoppedError if a study should not continue."""
        self.check_cancelled(study)
        if self._is_stopped:
            raise StoppedError

    def check_cancelled(self, study: str) -> None:
        """Raise StudyCancelledError if a study was cancelled; a stop does not count."""
        if study in self._cancelled:
            raise StudyCancelledError
