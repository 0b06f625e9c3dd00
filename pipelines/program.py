"""Name and version of this program for results and reports."""

from functools import cache
from importlib.metadata import version


@cache  # saves a search through all packages, twice per study
def program_version() -> str:
    """Return the version of this program."""
    return version("cuda-cyclegan")
