"""Errors of reading and writing scans, each a sentence for the user.

ScanError
├── UnreadableScanError   missing, truncated, damaged, hostile or forbidden
├── UnsupportedScanError  an intact file of a kind that this program does not translate
│   └── SeveralVolumesError  one of its volumes must be chosen
└── WriteError            the result could not be stored
    └── DiskFullError     no space left
"""

from collections.abc import Sequence


class ScanError(Exception):
    """Error of one scan; the batch continues. The message gives cause, place and remedy."""

    def __str__(self) -> str:
        """Return the message on one line, even if a path in it has newlines or is not UTF-8."""
        message = super().__str__()
        return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in message)


def listed(names: Sequence[str], most: int = 3) -> str:
    """List the first names, and count the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unexpected(error: Exception) -> str:
    """Return a message for an error that no code foresees."""
    return (
        f"{type(error).__name__}: {error}; this looks like a bug; please report it with the output "
        "of setting verbose."
    )


class UnreadableScanError(ScanError):
    """The file is missing, empty, truncated, damaged, or may not be read."""


class UnsupportedScanError(ScanError):
    """The file is sound but not a single 3D volume of a supported kind."""


class SeveralVolumesError(UnsupportedScanError):
    """The file holds several volumes, of which none was chosen.

    where_fixed: the message for commands that have no choice of a volume.
    """

    def __init__(self, message: str, where_fixed: str = "") -> None:
        super().__init__(message)
        self.where_fixed = where_fixed


class WriteError(ScanError):
    """The result could not be stored: disk full, folder read-only, or the check after it failed."""


class DiskFullError(WriteError):
    """Error of a full disk or an exhausted quota."""
