"""Errors of reading and writing scans, each a sentence for the user.

ScanError
├── UnreadableScanError   missing, truncated, damaged, hostile or forbidden
├── UnsupportedScanError  a sound file of a kind that this program does not translate
└── WriteError            the result could not be stored
"""


class ScanError(Exception):
    """This scan fails and the batch goes on; the message says what, where and what to do."""


class UnreadableScanError(ScanError):
    """The file is missing, empty, truncated, damaged, or may not be read."""


class UnsupportedScanError(ScanError):
    """The file is sound but not a single 3D volume of a supported kind."""


class WriteError(ScanError):
    """The result could not be stored: disk full, folder read-only, or the check after it failed."""
