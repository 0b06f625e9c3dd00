"""Errors of reading and writing scans, each a sentence for the user.

ScanError
├── UnreadableScanError   missing, truncated, damaged, hostile or forbidden
├── UnsupportedScanError  a sound file of a kind that this program does not translate
└── WriteError            the result could not be stored
    └── DiskFullError     for want of room
"""


class ScanError(Exception):
    """This scan fails and the batch goes on; the message says what, where and what to do."""

    def __str__(self) -> str:
        """The message on one line, also where a path in it holds newlines or is not UTF-8."""
        message = super().__str__()
        return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in message)


class UnreadableScanError(ScanError):
    """The file is missing, empty, truncated, damaged, or may not be read."""


class UnsupportedScanError(ScanError):
    """The file is sound but not a single 3D volume of a supported kind."""


class WriteError(ScanError):
    """The result could not be stored: disk full, folder read-only, or the check after it failed."""


class DiskFullError(WriteError):
    """The disk, or what this user may have of it, is full."""
