"""Series of real scanners, from what packages ship for their own tests."""

from pathlib import Path

from pydicom.data import get_testdata_file


def real_series(name: str) -> Path:
    """The folder of a series among pydicom's own test files."""
    directory = get_testdata_file("DICOMDIR", download=False)
    return Path(str(directory)).parent / name
